// Plans: Python makes them, compiled programs name them by a digest of their content and keep them alive.
#pragma once

#include <iterator>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "plans.h"

namespace snapgrad {

// Where a program finds a plan. A place that is named by a digest keeps the plan that it was made with; a slot is empty at
// first, and is given one plan after the other.
class Place {
 public:
  explicit Place(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}
  std::shared_ptr<const Plan> plan() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return plan_;
  }
  void put(std::shared_ptr<const Plan> plan) {
    std::lock_guard<std::mutex> lock(mutex_);
    plan_ = std::move(plan);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Plan> plan_;
};

// Shared, so that it stays while the kernel runs whatever is put into its place.
template <class P>
std::shared_ptr<const P> plan_in(const Place& place) {
  auto plan = std::dynamic_pointer_cast<const P>(place.plan());
  if (plan == nullptr) throw std::invalid_argument("snapgrad: there is no plan of this kind in its place");
  return plan;
}

class Registry {
 public:
  // Keeps what is already known under the name: programs may be holding it.
  std::shared_ptr<Place> add(const std::string& name, std::shared_ptr<const Plan> plan) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = places_.begin(); it != places_.end();) it = it->second.expired() ? places_.erase(it) : std::next(it);
    if (const auto found = places_.find(name); found != places_.end()) {
      if (auto known = found->second.lock()) return known;
    }
    auto place = std::make_shared<Place>(std::move(plan));
    places_[name] = place;
    return place;
  }
  std::shared_ptr<Place> find(std::string_view name) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = places_.find(std::string(name));
    return found == places_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<Place>> places_;
};

inline Registry& registry() {
  static Registry* const only = new Registry;  // never destroyed: programs may outlive static objects
  return *only;
}

}  // namespace snapgrad

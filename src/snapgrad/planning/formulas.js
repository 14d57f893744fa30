// The formulas of expectations.py and mesh.py, for the page: the same names, the same order. A test compares both.
"use strict";

const STEPS = 200;
const NEGLIGIBLE = 1e-9;
const FLOAT = 4;
const EFFICIENCY = 0.5;

const CELLS = {
  vanilla: { gates: 1, keptByItself: false, outputGates: 0 },
  gru: { gates: 3, keptByItself: true, outputGates: 0 },
  lstm: { gates: 4, keptByItself: false, outputGates: 1 },
};

// ---- expectations.py; an order of null is exact

function expected(network, order) {
  const cell = CELLS[network.cell], k = network.units, components = cell.outputGates > 0 ? 2 : 1;
  const recurrent = entriesOf(k * k, network.sparsity), input = entriesOf(k * network.inputs, network.sparsity);
  const perGate = recurrent + input + k, q = recurrent / (k * k);
  let kept = 0, influence = 0;
  for (const [gates, touchesC] of [[cell.gates - cell.outputGates, true], [cell.outputGates, false]]) {
    if (gates > 0) {
      const reach = meanReach(cell, k, q, order, touchesC);
      kept += gates * perGate * reach.entries;
      influence += 2 * gates * perGate * (reach.products + reach.entries);
    }
  }
  const weights = cell.gates * (recurrent + input);
  return {
    states: components * k, params: cell.gates * perGate, blocks: components * k, kept,
    forward: 2 * weights, influence, bptt: 4 * weights + 2 * cell.gates * recurrent,
  };
}

function entriesOf(size, sparsity) {
  return Math.max(1, Math.floor((1 - sparsity) * size + 0.5));
}

function meanReach(cell, k, q, order, touchesC) {
  const e = 1 - (1 - q) ** cell.gates;
  let total = 0, entries = 0, products = 0;
  for (const [successors, weight] of binomial(k - 1, e)) {
    const reach = reachOf(cell, k, q, order, touchesC, successors);
    total += weight;
    entries += weight * reach.entries;
    products += weight * reach.products;
  }
  return { entries: entries / total, products: products / total };
}

function reachOf(cell, k, q, order, touchesC, successors) {
  const hasC = cell.outputGates > 0, e = 1 - (1 - q) ** cell.gates;
  const eC = hasC ? 1 - (1 - q) ** (cell.gates - cell.outputGates) : 0;
  let inner = 0, trials = 1, p = 1, cSource = touchesC ? 1 : 0, cOthers = 0;
  for (let step = 1; step < (order === null ? STEPS : order); step++) {
    const last = trials * p;
    const missedC = step === 1 && k > 1 ? 1 - successors * (eC / e) / (k - 1) : (1 - p * eC) ** trials;
    cSource = 1 - (1 - cSource) * (step === 1 ? 1 - eC : (1 - p * eC) ** trials);
    cOthers = 1 - (1 - cOthers) * missedC;
    const hit = 1 - (1 - p * e) ** trials;
    inner += last;
    [trials, p] = step === 1 ? [successors, 1] : [k - inner, hit];
    if (trials * p < NEGLIGIBLE * inner) break;
  }
  const last = trials * p, h = inner + last, c = hasC ? cSource + (k - 1) * cOthers : 0;
  const betweenLast = last * inner + last * last + last * (1 - p) - last;
  const outgoing = inner > 0 ? successors + (inner - 1) * (k - 1) * e : 0;
  let products = outgoing + e * betweenLast + h * (cell.keptByItself ? 1 : e);
  if (hasC) {
    const outgoingC = inner > 0 ? successors * (eC / e) + (inner - 1) * (k - 1) * eC : 0;
    products += outgoingC + eC * (inner + last * c) + 2 * c;
  }
  return { entries: h + c, products };
}

function* binomial(trials, p) {
  if (p >= 1) {
    yield [trials, 1];
    return;
  }
  const mode = Math.min(trials, Math.floor((trials + 1) * p));
  for (let number = mode, weight = 1; number <= trials && weight > NEGLIGIBLE; number++) {
    yield [number, weight];
    weight *= (trials - number) / (number + 1) * p / (1 - p);
  }
  let weight = mode / (trials - mode + 1) * (1 - p) / p;
  for (let number = mode - 1; number >= 0 && weight > NEGLIGIBLE; number--) {
    yield [number, weight];
    weight *= number / (trials - number + 1) * (1 - p) / p;
  }
}

// ---- mesh.py; a mesh is { batch, params }

function load(counts, batch, mesh, device) {
  const lanes = batch / mesh.batch, influence = FLOAT * lanes * counts.kept / mesh.params;
  const flops = lanes * (counts.forward + counts.influence / mesh.params), gradient = FLOAT * counts.params;
  const summed = 2 * (mesh.batch - 1) / mesh.batch * gradient / mesh.params;
  const gathered = (mesh.params - 1) / mesh.params * gradient;
  const roofline = Math.max(flops / device.flops, 2 * influence / device.bytes);
  return {
    memory: influence + replicated(counts, lanes), flops, traffic: 2 * influence, network: summed + gathered,
    seconds: roofline / EFFICIENCY + (summed + gathered) / device.network,
  };
}

function replicated(counts, lanes) {
  return FLOAT * (lanes * counts.states + counts.params);
}

function bpttMemory(counts, batch, window) {
  return FLOAT * (batch * window * counts.states + counts.params);
}

function fastest(counts, batch, devices, device) {
  const meshes = divisors(batch)
    .filter((split) => devices % split === 0 && devices / split <= counts.blocks)
    .map((split) => ({ batch: split, params: devices / split }));
  const rank = (mesh) => {
    const found = load(counts, batch, mesh, device);
    return [found.memory > device.memory ? 1 : 0, found.seconds];
  };
  return least(meshes, rank);
}

function smallest(counts, batch, device) {
  const meshes = [];
  for (const split of divisors(batch)) {
    const lanes = batch / split, room = device.memory - replicated(counts, lanes);
    if (room > 0) {
      const params = Math.max(1, Math.ceil(FLOAT * lanes * counts.kept / room));
      if (params <= counts.blocks) meshes.push({ batch: split, params });
    }
  }
  return least(meshes, (mesh) => [mesh.batch * mesh.params, load(counts, batch, mesh, device).seconds]);
}

function divisors(number) {
  return Array.from({ length: number }, (_, n) => n + 1).filter((n) => number % n === 0);
}

function least(meshes, rank) {
  let best = null, bestRank = null;
  for (const mesh of meshes) {
    const now = rank(mesh);
    if (best === null || now[0] < bestRank[0] || (now[0] === bestRank[0] && now[1] < bestRank[1])) {
      [best, bestRank] = [mesh, now];
    }
  }
  return best;
}

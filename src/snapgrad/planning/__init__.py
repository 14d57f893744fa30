"""What a network would need on given devices, before there are any."""

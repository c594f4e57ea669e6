"""Polynomial packings: forwarders split off, arborescences and spanning trees, exact rates to whole trees."""

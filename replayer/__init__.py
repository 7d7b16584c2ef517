"""From a manifest to warm kernels: plan, rebuild, compile, load, report."""

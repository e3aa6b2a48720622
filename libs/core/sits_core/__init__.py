"""What every SITS process needs: settings, errors, deadlines, registry, RPC and telemetry."""

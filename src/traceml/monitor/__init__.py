"""The monitor's side of recording: run folder, launching, tailing, gauges."""

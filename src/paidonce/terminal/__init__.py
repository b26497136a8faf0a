"""What commands share: settings, output for people and for programs, filters."""

"""Surgery on models that exist: what it takes to put norms in and to fold them away."""

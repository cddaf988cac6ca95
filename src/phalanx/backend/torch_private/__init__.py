"""Every private torch name that Phalanx touches, with its reason and versions."""

"""How much is needed for a load, from the model, the device, the traffic and the objective alone."""

"""The TrainingJob resource: typed models, defaults, rules and what is generated from them. Pure."""

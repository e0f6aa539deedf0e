"""The shipped profiles: YAML files beside this one, facts about models in models/."""

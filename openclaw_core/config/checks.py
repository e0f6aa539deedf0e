def check(config):
    return []


def remarks(config, origins):
    return []

"""The search for the deepest model that trains."""


def find_depth(first, within, trial):
    """Returns the record of the largest number of layers that fits, to `within`
    layers, or None if none does, and the smallest number that does not fit.
    trial(layers) returns a record. Doubles `first` until a trial does not fit,
    then bisects."""
    best, fits, too_many = None, 0, None
    while too_many is None or too_many - fits > within:
        layers = 2 * fits or first
        if too_many is not None:
            layers = (fits + too_many) // 2
        record = trial(layers)
        if record["status"] == "OK":
            best, fits = record, layers
        else:
            too_many = layers
    return best, too_many

"""The names that a shell completes."""


def list_names(kind: str) -> list[str]:
    """Return the strategies, datasets, machines, programs, or keys of --set that exist here."""
    from harness.experiment.external.program import list_programs
    from harness.graph.cards.catalog import list_cards
    from harness.registry import registered_strategies
    from harness.spec.machine_card import list_machines
    from harness.spec.root import find_root
    from harness.spec.spec import list_spec_keys

    match kind:
        case "strategies":
            return [point.name for point in registered_strategies()]
        case "machines":
            return list_machines(find_root(None))
        case "datasets":
            return list_cards(find_root(None))
        case "programs":
            return list_programs(find_root(None))
        case _:
            return [f"{key}=" for key in list_spec_keys()]

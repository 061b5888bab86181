"""A model's colour is its own, on every chart."""

from dashboards.ui.colours import COLOURS, model_colours

CONFIGURED = [f"model-{place}" for place in range(COLOURS + 1)]


def test_a_model_has_one_colour_whatever_is_drawn_beside_it() -> None:
    """Neither the order of spend nor the other models change it."""
    both = model_colours(CONFIGURED, ["model-3", "model-1"])
    assert both == model_colours(CONFIGURED, ["model-1", "model-3"])
    assert model_colours(CONFIGURED, ["model-3"])["model-3"] == both["model-3"] != both["model-1"]


def test_two_models_of_a_chart_never_share_a_colour_while_there_are_enough() -> None:
    """The first and the thirteenth would; and so would models that are configured no more."""
    drawn = ["model-0", f"model-{COLOURS}", *(f"gone-{each}" for each in range(COLOURS - 2))]
    found = model_colours(CONFIGURED, drawn)
    assert len(set(found.values())) == COLOURS
    assert found["model-0"] == 1
    assert set(model_colours(CONFIGURED, CONFIGURED).values()) == set(range(1, COLOURS + 1))

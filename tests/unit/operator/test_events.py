"""Events as the API server takes them."""

from tierline_kube.events import Reporter, event


def test_a_note_and_a_name_are_cut_where_the_api_server_counts() -> None:
    reporter = Reporter("tierline.io/tests", "n" * 300, "Test")
    made = event(reporter, {"name": "m"}, "Refused", "é" * 2000, 1, normal=False)
    assert made["note"] == "é" * 512
    assert len(made["reportingInstance"]) == 128

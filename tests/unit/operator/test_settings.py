"""The operator's settings: typed, and loud about what makes no sense."""

from dataclasses import fields

import pytest

from tierline_operator import settings


def test_the_environment_sets_them() -> None:
    read = settings.read(
        {
            "TIERLINE_OPERATOR_NAMESPACE": "tier",
            "TIERLINE_OPERATOR_RETRY_PERIOD_S": "1.5",
            "TIERLINE_OPERATOR_METRICS_PORT": "0",
            "PATH": "/bin",
        }
    )

    assert (read.namespace, read.retry_period_s, read.metrics_port) == ("tier", 1.5, 0)
    assert read.lease_duration_s == 15.0


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        pytest.param(
            "RETY_PERIOD_S", "1", "is no setting of the operator; remove it", id="misspelt"
        ),
        pytest.param("RETRY_PERIOD_S", "often", "is 'often'; write a number", id="no number"),
        pytest.param("METRICS_PORT", "1.5", "is '1.5'; write a number", id="no whole number"),
        pytest.param("RENEW_DEADLINE_S", "20", "must rise in this order", id="renews too late"),
        pytest.param("LOG_FORMAT", "xml", "write one of json, text", id="unknown format"),
        pytest.param("LOG_LEVEL", "loud", "debug, info, warning, error", id="unknown level"),
        pytest.param(
            "CPU_MARGIN", "0.9", "is 0.9; write a number from 1 to 100", id="margin below 1"
        ),
        pytest.param("HEADROOM", "1", "write a share from 0 to below 1", id="all is headroom"),
        pytest.param("WRITES_AT_ONCE", "0", "is 0; write a number from 1 to 1000", id="no writes"),
        pytest.param(
            "LEASE_DURATION_S", "0.4", "from 1 to 3600", id="a Lease that the API cannot state"
        ),
        pytest.param("RETRY_PERIOD_S", "0", "is 0.0; write a number from 0.1", id="no pause"),
        pytest.param("MEASURING_LIMIT_S", "-1", "from 1 to 86400", id="a time before now"),
        pytest.param("METRICS_PORT", "65536", "from 0 to 65535", id="no such port"),
        pytest.param("HEALTH_PORT", "-1", "from 0 to 65535", id="a port below 0"),
    ],
)
def test_what_makes_no_sense_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(settings.SettingsError, match="TIERLINE_OPERATOR_") as refused:
        settings.read({f"TIERLINE_OPERATOR_{name}": value})

    assert said in str(refused.value)


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e308"])
@pytest.mark.parametrize(
    "name", [setting.name for setting in fields(settings.Settings) if setting.type == "float"]
)
def test_a_number_is_finite_and_within_reason(name: str, value: str) -> None:
    variable = settings.name_of(name)

    with pytest.raises(settings.SettingsError) as refused:
        settings.read({variable: value})

    assert str(refused.value).startswith(f"{variable} is {float(value)}; write a ")

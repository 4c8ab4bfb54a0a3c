"""The doctor: rules that say why a run does not learn."""

from covey.doctor.examine import Diagnosis, Subject, examine
from covey.doctor.facts import Curve, Facts, Finding
from covey.doctor.rules import RULES, findings

__all__ = ["RULES", "Curve", "Diagnosis", "Facts", "Finding", "Subject", "examine", "findings"]

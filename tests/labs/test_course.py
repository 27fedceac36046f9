"""A course: whose a hand-in is, when it came, and what lateness costs."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from compare.labs import course, hand_ins, roster
from compare.labs import lab as labs
from compare.labs.course import Course, LateRule, with_lateness
from compare.labs.marking import Marks, Part, Submission, best
from compare.labs.work import start
from compare.model.op import UsageError
from compare.registry import ROOT
from loops import for_each

LAB = labs.find("01")
DUE = datetime.fromisoformat("2026-12-01T23:59:00-08:00")
ROSTER = "name,id,email\nAnn Lee,17,ann@x.edu\nBob Ray,18,bray@x.edu\nCy,19,\n"


def course_of(folder: Path, text: str, **files: str) -> Course:
    """The course of this description, with CSV files by their stems."""
    (folder / course.NAME).write_text(text)
    for name, content in files.items():
        (folder / f"{name}.csv").write_text(content)
    return course.find(folder)


# --------------------------------------------------------------------------- students


@for_each(
    "name, key",
    [
        ("Ann Lee", "17"),
        ("ann_lee", "17"),
        ("17", "17"),
        ("ANN@x.edu", "17"),
        ("bray", "18"),
        ("leeann_4711_99_lab01", "17"),  # Canvas
        ("rayBob_LATE_4711_99_lab01-1", "18"),
        ("Ann Lee_4711_assignsubmission_file_", "17"),  # Moodle
        ("dave", None),
        ("ann_evil", None),
        ("dave_1_2_17", None),  # the rest of the name is the student's own
        ("Ann Lee_evil", None),
    ],
)
def test_a_hand_in_is_found_by_name_id_or_email(name: str, key: str | None, tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text(ROSTER)
    person = roster.read(tmp_path / "roster.csv").find(name)
    assert (person.id if person else None) == key


def test_rosters_of_platforms_and_students_of_one_name(tmp_path: Path) -> None:
    file = tmp_path / "roster.csv"
    file.write_text(
        '\ufeffStudent,ID,SIS User ID,Section\n    Points Possible,,,\n"Lee, Ann",1,x1,A\n"Lee, Ann",2,x2,A\n'
    )
    people = roster.read(file)
    assert [person.name for person in people.people] == ["Lee, Ann (1)", "Lee, Ann (2)"]
    with pytest.raises(UsageError, match="leeann may be of the students 1, 2: name it by the id"):
        roster.Roster([replace(each, name="Ann Lee") for each in people.people]).find("leeann")
    file.write_text("First name;Surname;ID number;Email address\nAnn;Lee;17;a@x.edu\n")
    assert roster.read(file).people == (roster.Person("Ann Lee", "17", "a@x.edu"),)


@for_each(
    "text, says",
    [
        ("name,id\nAnn,1\nBob,1\n", "line 3: the id 1 stands in"),
        ("name,id,email\nAnn,1,a@x\nBob,2,A@x\n", "line 3: A@x stands in"),
        ("name,id\nAnn,\n", "line 2: it needs a name and an id"),
        ("name,id\nAnn,1\nAnn,2\nAnn (2),3\n", "line 4: another student is shown as Ann (2)"),
    ],
)
def test_a_mistake_in_a_roster_names_the_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text(text)
    with pytest.raises(UsageError, match=re.escape(says)):
        roster.read(tmp_path / "roster.csv")


def test_missing_and_unknown_students_are_named(tmp_path: Path) -> None:
    for name in ("ann lee", "mallory"):
        start(LAB, tmp_path / name)
    of = course_of(tmp_path, 'roster = "roster.csv"', roster=ROSTER)
    found, older = hand_ins.of_class(tmp_path, tmp_path / "_u", of)
    absent = roster.missing(of.people(), (each.person for each in found))
    assert hand_ins.notes(found, older, absent, True) == [
        "No hand-in of: Bob Ray, Cy.",
        "Not on the roster: mallory.",
    ]
    assert {each.student: each.key for each in found} == {"Ann Lee": "17", "mallory": "mallory"}


# --------------------------------------------------------------------------- times


def test_the_last_of_several_hand_ins_counts_where_that_is_asked_for(tmp_path: Path) -> None:
    for name in ("ann_2026-11-30T1200", "ann-20261201-090000", "al\u202eice", "al\u202dice"):
        start(LAB, tmp_path / name)
    found, _ = hand_ins.of_class(tmp_path, tmp_path / "_u")
    assert all("of several of one student take the last by --latest" in each.problem for each in found)
    found, older = hand_ins.of_class(tmp_path, tmp_path / "_u", latest=True)
    assert [(each.student, each.folder.name) for each in found if not each.problem] == [
        ("ann", "ann-20261201-090000")
    ]
    assert len([each for each in found if each.problem]) == 2, "they only look alike"
    assert hand_ins.notes(found, older, [], False) == [
        "Replaced by a later hand-in: ann (ann_2026-11-30T1200)."
    ]


@for_each(
    "text",
    [
        "2026-12-02T08:00:00Z",
        "2026-12-02 00:00:00 -0800",  # Gradescope
        "2026-12-02T00:00:00.123-08:00",
        '"Wednesday, 2 December 2026, 12:00 AM"',  # Moodle: in the due date's zone
        '"Wednesday, December 2, 2026, 12:00 AM"',
        "2026-12-02 00:00",
    ],
)
def test_times_are_read_as_platforms_write_them(text: str, tmp_path: Path) -> None:
    of = course_of(
        tmp_path,
        'times = "times.csv"\ndue = 2026-12-01T23:59:00-08:00',
        times=f"SID,Email,Submission Time\n17,ann@x.edu,{text}\n18,,-\n",
    )
    times = of.submissions()
    person = roster.Person("Ann Lee", "17")
    listed = times.of("leeann", person)
    assert listed.time == DUE + timedelta(minutes=1)
    assert listed.source.endswith("times.csv, line 2")
    assert times.of("bob", None) is None
    assert times.of("18", None) is None, "handed in nothing"


def test_a_time_comes_from_the_list_the_name_or_the_files(tmp_path: Path) -> None:
    of = course_of(
        tmp_path,
        'times = "times.csv"\nroster = "roster.csv"\ndue = 2026-12-01T23:59:00-08:00',
        times="Submission ID,SID,Submission Time\n123,18,2026-12-01 10:00:00 -0800\n",
        roster=ROSTER,
    )
    for name in ("submission_123", "ann lee_2026-12-01T1100", "cy"):
        start(LAB, tmp_path / name)
    for file in (tmp_path / "cy").iterdir():
        os.utime(file, (0, DUE.timestamp()))
    found = {each.student: each for each in hand_ins.of_class(tmp_path, tmp_path / "_u", of)[0]}
    sources = {name: each.submission.source for name, each in found.items() if each.submission}
    assert sources == {
        "Bob Ray": f"{tmp_path / 'times.csv'}, line 2",
        "Ann Lee": "the time in its name",
        "Cy": "the time of its files, for want of a better one",
    }
    cy = hand_ins.of_one(tmp_path / "cy", of)
    assert cy.submission.time == DUE
    assert of.submissions().of_files(tmp_path / "gone") is None


@for_each(
    "text, says",
    [
        ("due = 2026-12-01T23:59:00", "course.toml, line 1: due = 2026-12-01T23:59:00 has no time zone"),
        ('due = "soon"', "course.toml, line 1:"),
        ("[late]\npoints_per_day = 1\npercent_per_day = 2", "course.toml, line 1: a late rule has one of"),
        ("[late]\npoints_per_day = 1\ncap = -1", "cap = -1: write a number of 0 or more"),
        ("\nlast = 3", "course.toml, line 2: course.toml: unknown last"),
        ('times = "no.csv"', "no.csv cannot be read"),
        ('times = "times.csv"', "times.csv, line 2: 'noon' is no time"),
        ('times = "roster.csv"', "roster.csv, line 1: no column of submission times"),
    ],
)
def test_a_mistake_in_a_course_names_file_and_line(text: str, says: str, tmp_path: Path) -> None:
    def read_all() -> None:
        of = course_of(tmp_path, text, times="id,time\nann,noon\n", roster=ROSTER)
        of.submissions().of("ann", None)

    with pytest.raises(UsageError, match=re.escape(says)):
        read_all()


def test_the_page_s_course_is_one(tmp_path: Path) -> None:
    page = (ROOT / "labs" / "course.md").read_text()
    of = course_of(tmp_path, re.findall(r"(?s)```toml\n(.*?)```", page)[0])
    assert of.late == LateRule(points_per_day=2, cap=6, grace_minutes=15, closes_after_days=5)
    assert of.due == DUE
    assert of.due_of(("1718",)) == DUE + timedelta(days=3)


# --------------------------------------------------------------------------- lateness


def handed_in(points: float, hours: float, digest: str, answer: str = "") -> Marks:
    """Marks of a hand-in so many hours after the due date."""
    submission = Submission((DUE + timedelta(hours=hours)).isoformat(), "times.csv, line 2", digest)
    parts = (Part("x", points, 10, "passed" if points == 10 else "wrong", answer=answer),)
    return Marks("ann", "01", "", False, "", digest, parts, submission)


@for_each(
    "rule, hours, lost, says",
    [
        (LateRule(points_per_day=1), -1, 0, ""),
        (LateRule(points_per_day=1, grace_minutes=30), 0.5, 0, ""),
        (LateRule(points_per_day=1, grace_minutes=30), 0.51, 1, "1 day late: 1 points a day; handed in"),
        (LateRule(points_per_day=1.5, cap=4), 25, 3, "2 days late: 1.5 points a day, at most 4"),
        (LateRule(points_per_day=1.5, cap=4), 100, 4, "5 days late"),
        (LateRule(points_per_day=9), 30, 8, "2 days late: 9 points a day"),
        (LateRule(percent_per_day=10, cap=25), 25, 1.6, "2 days late: 10 % a day, at most 25"),
        (LateRule(percent_per_day=10, cap=25), 99, 2, "5 days late"),
        (LateRule(percent_per_day=1, closes_after_days=3), 72, 0.24, "3 days late"),
        (LateRule(percent_per_day=1, closes_after_days=3), 73, 8, "4 days late: closed after 3 days"),
        (None, 1, 0, "late: it costs nothing; handed in"),
    ],
)
def test_a_late_rule(rule: LateRule | None, hours: float, lost: float, says: str) -> None:
    marks = with_lateness(handed_in(8, hours, "a"), DUE, rule)
    assert (marks.earned, marks.lost, marks.points) == (8, pytest.approx(lost), pytest.approx(8 - lost))
    assert says in marks.late
    assert bool(marks.late) == bool(says)


def test_without_a_due_date_or_a_time_no_hand_in_is_late() -> None:
    rule = LateRule(points_per_day=1)
    assert with_lateness(handed_in(8, 99, "a"), None, rule).late == ""
    assert with_lateness(replace(handed_in(8, 99, "a"), submission=None), DUE, rule).late == ""


def test_a_student_may_have_another_due_date() -> None:
    later = DUE + timedelta(days=2)
    of = Course(due=DUE, extension=(course.Extension("17", later),))
    assert of.due_of(("Ann Lee", "17")) == later
    assert of.due_of(("Bob Ray", "18")) == DUE


def test_a_late_hand_in_adds_points_at_its_price_and_takes_none_away() -> None:
    rule = LateRule(points_per_day=3)
    early, late, later = (handed_in(*each) for each in ((5, -1, "a"), (7, 1, "b"), (10, 25, "c")))
    assert with_lateness(best(early, late), DUE, rule).points == 5
    assert with_lateness(best(best(early, late), later), DUE, rule).points == 5
    assert with_lateness(best(early, handed_in(10, 1, "d")), DUE, rule).points == 7
    worse = with_lateness(best(early, handed_in(0, 1, "e")), DUE, rule)
    assert (worse.points, worse.late) == (5, "")


def test_new_answers_are_those_of_the_later_hand_in() -> None:
    early, late = handed_in(5, -1, "a", "An answer."), handed_in(5, 1, "b", "A better answer.")
    assert with_lateness(best(early, late), DUE, LateRule(points_per_day=3)).points == 2

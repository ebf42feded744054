"""Write text.txt: a few hundred short stories in simple English, the same every time.

    python make_text.py

A story is a title line, then its sentences on one line; stories are separated by an empty line.
"""

from __future__ import annotations

import random
from pathlib import Path

STORIES = 480
SEED = 20

PEOPLE = [
    ("Lily", "girl", "she", "her", "her"),
    ("Tom", "boy", "he", "him", "his"),
    ("Anna", "girl", "she", "her", "her"),
    ("Ben", "boy", "he", "him", "his"),
    ("Mia", "girl", "she", "her", "her"),
    ("Sam", "boy", "he", "him", "his"),
    ("Rosa", "girl", "she", "her", "her"),
    ("Max", "boy", "he", "him", "his"),
    ("Zoe", "girl", "she", "her", "her"),
    ("Leo", "boy", "he", "him", "his"),
]
FRIENDS = [
    ("fox", "Red"),
    ("rabbit", "Hop"),
    ("hen", "Clara"),
    ("bear", "Bo"),
    ("duck", "Pip"),
    ("cat", "Milo"),
    ("dog", "Rex"),
    ("mouse", "Dot"),
    ("frog", "Gus"),
    ("horse", "Star"),
]
MOODS = ["happy", "brave", "quiet", "curious", "kind", "clever", "shy", "funny"]
PLACES = [
    ("forest", "under the tall trees"),
    ("garden", "between the flowers"),
    ("beach", "on the warm sand"),
    ("farm", "behind the old barn"),
    ("park", "next to the pond"),
    ("village", "near the stone bridge"),
    ("hill", "in the long grass"),
    ("river", "beside the cold water"),
]
THINGS = [
    ("kite", "fly it"),
    ("ball", "throw it"),
    ("drum", "play it"),
    ("boat", "sail it"),
    ("book", "read it"),
    ("lamp", "light it"),
    ("hat", "wear it"),
    ("cake", "share it"),
    ("bell", "ring it"),
    ("seed", "plant it"),
]
COLOURS = ["red", "blue", "green", "yellow", "white", "purple"]
WEATHER = [
    "The sun was warm.",
    "It was a windy morning.",
    "The rain had just stopped.",
    "Snow lay on the ground.",
    "The sky was full of small clouds.",
    "It was a cool and quiet evening.",
]
OPENINGS = [
    "Once upon a time there was a {mood} {kind} named {name}.",
    "There was once a {mood} {kind} called {name}.",
    "One day a {mood} {kind} named {name} woke up early.",
    "{name} was a {mood} {kind} who lived near the {place}.",
]
WANTS = [
    "{He} had a {colour} {thing} and {he} wanted to {use} all day.",
    "{He} loved {his} {colour} {thing} more than anything.",
    "{His} mother gave {him} a {colour} {thing}, and {he} could not wait to {use}.",
    "In {his} bag there was a {colour} {thing}, because {he} liked to {use}.",
]
WALKS = [
    "So {name} went to the {place} and played {spot}.",
    "{He} walked to the {place} and sat down {spot}.",
    "{name} ran all the way to the {place}, singing a little song.",
]
PROBLEMS = [
    "But then the {thing} was gone, and {name} began to cry.",
    "Suddenly the {thing} fell into a deep hole, and {he} could not reach it.",
    "Then the wind took the {thing} up into a tree, and {name} was very sad.",
    "But the {thing} broke into two pieces, and {he} did not know what to do.",
]
MEETINGS = [
    'A {friend} named {pet} came by and asked, "Why are you sad, {name}?"',
    'Just then a big {friend} looked up. "I am {pet}," said the {friend}. "Can I help you?"',
    'A little {friend} called {pet} heard {him}. "Do not worry," {pet} said.',
]
ANSWERS = [
    '"I lost my {thing}," said {name}. "Please help me."',
    '"My {colour} {thing} is not here any more," {name} said in a small voice.',
    '"I want my {thing} back," said {name}, "but I am too small."',
]
WORK = [
    "They looked {spot} for a long time, and at last {pet} found a way.",
    "The {friend} thought for a moment, and then they worked together until it was done.",
    "{pet} knew the {place} very well, and soon they had a good plan.",
    "{name} held a long stick, {pet} pulled hard, and they did not give up.",
]
FIXES = [
    "Soon the {thing} was safe in {his} hands again.",
    "In the end {name} had the {colour} {thing} back, and it was as good as new.",
    "The {thing} was back, and {name} jumped up and down with joy.",
]
THANKS = [
    '"Thank you, {pet}!" said {name}. "You are a good friend."',
    '{name} gave {pet} a big hug and said, "Now we can {use} together."',
    '"You helped me, so I will help you," said {name}, and {pet} smiled.',
]
ENDINGS = [
    "From that day on, {name} and {pet} met at the {place} every week.",
    "They played until the sun went down, and then {name} went home to sleep.",
    "{name} learned that it is good to ask for help. The end.",
    "And {name} and the {friend} were friends for ever after.",
]
TITLES = [
    "{name} and the {colour} {thing}",
    "The {mood} {kind} and the {friend}",
    "The lost {thing} at the {place}",
]
BEATS = [OPENINGS, WANTS, WALKS, PROBLEMS, MEETINGS, ANSWERS, WORK, FIXES, THANKS, ENDINGS]


def write_story(rng: random.Random) -> str:
    """Return one story: a title line, a newline, the sentences."""
    name, kind, he, him, his = rng.choice(PEOPLE)
    friend, pet = rng.choice(FRIENDS)
    place, spot = rng.choice(PLACES)
    thing, use = rng.choice(THINGS)
    words = {
        "name": name,
        "kind": kind,
        "he": he,
        "He": he.capitalize(),
        "him": him,
        "his": his,
        "His": his.capitalize(),
        "friend": friend,
        "pet": pet,
        "place": place,
        "spot": spot,
        "thing": thing,
        "use": use,
        "mood": rng.choice(MOODS),
        "colour": rng.choice(COLOURS),
    }
    sentences = [rng.choice(beat).format_map(words) for beat in BEATS]
    sentences.insert(2, rng.choice(WEATHER))
    title = rng.choice(TITLES).format_map(words)
    return f"{title}\n{' '.join(sentences)}"


def main() -> None:
    rng = random.Random(SEED)
    text = "\n\n".join(write_story(rng) for _ in range(STORIES)) + "\n"
    target = Path(__file__).with_name("text.txt")
    target.write_text(text, encoding="utf-8")
    print(f"{target.name}: {STORIES} stories, {len(text) // 1000} kB")


if __name__ == "__main__":
    main()

"""Templates of mathematics problems: each makes a text and its exact answer from a random generator.

A template's name and numbers say which problems are the same, so a template keeps its name for ever.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import product

Answer = int | Fraction
Template = Callable[[random.Random], tuple[str, Answer]]

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ivy", "Jon", "Kim", "Leo", "Mia", "Nia", "Otto")
THINGS = ("apples", "books", "cards", "coins", "eggs", "keys", "marbles", "nuts", "pens", "shells", "stamps", "toys")
WORDS = (
    "BANANA",
    "LEVEL",
    "PEPPER",
    "COFFEE",
    "TATTOO",
    "BALLOON",
    "LETTER",
    "ERROR",
    "COMMITTEE",
    "SUCCESS",
    "MISSISSIPPI",
)


# Tier 1: one step, numbers up to 20.


def _sum(rng: random.Random) -> tuple[str, Answer]:
    a, b = rng.randint(1, 12), rng.randint(1, 12)
    form = rng.choice(("What is {} + {}?", "Compute {} + {}.", "What is the sum of {} and {}?", "Add {} and {}."))
    return form.format(a, b), a + b


def _difference(rng: random.Random) -> tuple[str, Answer]:
    a, b = sorted((rng.randint(1, 20), rng.randint(1, 20)), reverse=True)
    form = rng.choice(("What is {} - {}?", "Compute {} - {}.", "How much is {} minus {}?"))
    return form.format(a, b), a - b


def _product(rng: random.Random) -> tuple[str, Answer]:
    a, b = rng.randint(2, 10), rng.randint(2, 10)
    form = rng.choice(("What is {} * {}?", "Compute {} * {}.", "What is {} times {}?"))
    return form.format(a, b), a * b


def _gain(rng: random.Random) -> tuple[str, Answer]:
    a, b, who, what = rng.randint(2, 10), rng.randint(2, 10), rng.choice(NAMES), rng.choice(THINGS)
    how = rng.choice(("gets {} more", "finds {} more", "buys {} more"))
    return f"{who} has {a} {what} and {how.format(b)}. How many {what} does {who} have now?", a + b


def _loss(rng: random.Random) -> tuple[str, Answer]:
    b = rng.randint(2, 9)
    a, who, what = b + rng.randint(2, 10), rng.choice(NAMES), rng.choice(THINGS)
    how = rng.choice(("gives away {}", "loses {}", "sells {}"))
    return f"{who} has {a} {what} and {how.format(b)}. How many {what} are left?", a - b


def _groups(rng: random.Random) -> tuple[str, Answer]:
    a, b, where, what = rng.randint(2, 6), rng.randint(2, 6), rng.choice(("bags", "boxes", "jars")), rng.choice(THINGS)
    return f"There are {a} {where} with {b} {what} each. How many {what} are there?", a * b


def _addend(rng: random.Random) -> tuple[str, Answer]:
    a, x = rng.randint(1, 12), rng.randint(1, 12)
    return f"What number must be added to {a} to get {a + x}?", x


def _half(rng: random.Random) -> tuple[str, Answer]:
    a = rng.randint(1, 20)
    word, number, answer = rng.choice((("half", 2 * a, a), ("twice", a, 2 * a), ("one third", 3 * a, a)))
    return f"What is {word} {'of ' if word != 'twice' else ''}{number}?", answer


# Tier 2: two steps, or larger numbers.


def _two_digit(rng: random.Random) -> tuple[str, Answer]:
    a, b = rng.randint(11, 99), rng.randint(11, 99)
    return (f"What is {a} + {b}?", a + b) if rng.random() < 0.5 else (f"What is {a + b} - {b}?", a)


def _order(rng: random.Random) -> tuple[str, Answer]:
    a, b, c = rng.randint(2, 12), rng.randint(2, 9), rng.randint(2, 9)
    if rng.random() < 0.5:
        return f"What is {a} + {b} * {c}?", a + b * c
    return f"What is ({a} + {b}) * {c}?", (a + b) * c


def _two_steps(rng: random.Random) -> tuple[str, Answer]:
    a, b, price = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
    who, what = rng.choice(NAMES), rng.choice(THINGS)
    return f"{who} buys {a} {what} for ${price} each and pays ${b} for a bag. How many dollars is that?", a * price + b


def _leftover(rng: random.Random) -> tuple[str, Answer]:
    a, b, who, what = rng.randint(3, 9), rng.randint(2, 6), rng.choice(NAMES), rng.choice(THINGS)
    used = rng.randint(1, a * b - 1)
    return f"{who} has {b} boxes of {a} {what} and uses {used} {what}. How many {what} are left?", a * b - used


def _unknown(rng: random.Random) -> tuple[str, Answer]:
    a, x = rng.randint(2, 30), rng.randint(2, 30)
    match rng.randrange(3):
        case 0:
            return f"Solve for x: x + {a} = {a + x}", x
        case 1:
            return f"Solve for x: x - {a} = {x}", x + a
        case _:
            b = rng.randint(2, 9)
            return f"Solve for x: {b}x = {b * x}", x


def _remainder(rng: random.Random) -> tuple[str, Answer]:
    b = rng.randint(3, 12)
    a = rng.randint(b + 1, 99)
    return f"What is the remainder when {a} is divided by {b}?", a % b


def _percent(rng: random.Random) -> tuple[str, Answer]:
    rate = rng.choice((10, 20, 25, 50, 75))
    base = rng.randint(1, 20) * (100 // math.gcd(rate, 100))
    return f"What is {rate}% of {base}?", rate * base // 100


def _next_term(rng: random.Random) -> tuple[str, Answer]:
    start, step = rng.randint(1, 20), rng.randint(2, 9)
    terms = ", ".join(str(start + i * step) for i in range(4))
    return f"What number comes next: {terms}, ...?", start + 4 * step


def _between(rng: random.Random) -> tuple[str, Answer]:
    a = rng.randint(1, 30)
    b = a + rng.randint(4, 40)
    kind, parity = rng.choice((("even", 0), ("odd", 1)))
    return f"How many {kind} numbers are there from {a} to {b}, both included?", sum(
        n % 2 == parity for n in range(a, b + 1)
    )


def _outfits(rng: random.Random) -> tuple[str, Answer]:
    a, b, who = rng.randint(2, 9), rng.randint(2, 9), rng.choice(NAMES)
    return f"{who} has {a} shirts and {b} hats. How many ways are there to choose one shirt and one hat?", a * b


# Tier 3: a short method.


def _linear(rng: random.Random) -> tuple[str, Answer]:
    a, b, x = rng.randint(2, 12), rng.randint(1, 30), rng.randint(-9, 15)
    return (
        (f"Solve for x: {a}x + {b} = {a * x + b}", x)
        if rng.random() < 0.5
        else (f"Solve for x: {a}x - {b} = {a * x - b}", x)
    )


def _both_sides(rng: random.Random) -> tuple[str, Answer]:
    c, x, b = rng.randint(1, 6), rng.randint(-6, 12), rng.randint(1, 20)
    a = c + rng.randint(1, 6)
    d = a * x + b - c * x
    return f"Solve for x: {a}x + {b} = {_times(c, 'x')} {'+' if d >= 0 else '-'} {abs(d)}", x


def _fractions(rng: random.Random) -> tuple[str, Answer]:
    p, q = Fraction(rng.randint(1, 5), rng.randint(2, 9)), Fraction(rng.randint(1, 5), rng.randint(2, 9))
    sign, value = rng.choice((("+", p + q), ("*", p * q)))
    return f"What is {p} {sign} {q}? Give a fraction or a whole number.", value


def _average(rng: random.Random) -> tuple[str, Answer]:
    numbers = [rng.randint(1, 40) for _ in range(rng.randint(3, 5))]
    numbers[-1] += -sum(numbers) % len(numbers)
    return f"What is the average of {', '.join(map(str, numbers))}?", sum(numbers) // len(numbers)


def _divisor(rng: random.Random) -> tuple[str, Answer]:
    a, b, common = rng.randint(2, 12), rng.randint(2, 12), rng.randint(1, 9)
    name, value = rng.choice((("greatest common divisor", math.gcd), ("least common multiple", math.lcm)))
    return f"What is the {name} of {a * common} and {b * common}?", value(a * common, b * common)


def _multiples(rng: random.Random) -> tuple[str, Answer]:
    d, n = rng.randint(3, 19), rng.randint(40, 400)
    return f"How many positive multiples of {d} are at most {n}?", n // d


def _primes(rng: random.Random) -> tuple[str, Answer]:
    a = rng.randint(1, 60)
    b = a + rng.randint(10, 40)
    return f"How many prime numbers are there from {a} to {b}, both included?", sum(map(_is_prime, range(a, b + 1)))


def _area(rng: random.Random) -> tuple[str, Answer]:
    a, b = rng.randint(3, 25), rng.randint(3, 25)
    return f"A rectangle has perimeter {2 * (a + b)} and one side of length {a}. What is its area?", a * b


def _speed(rng: random.Random) -> tuple[str, Answer]:
    v, t, u = rng.randint(3, 20) * 5, rng.randint(2, 6), rng.randint(2, 6)
    return f"A train covers {v * t} km in {t} hours. How many km does it cover in {u} hours at that speed?", v * u


def _order_people(rng: random.Random) -> tuple[str, Answer]:
    n = rng.randint(3, 9)
    r = rng.randint(2, min(n, 4))
    return f"In how many ways can {n} runners take the first {r} places of a race, without ties?", math.perm(n, r)


def _handshakes(rng: random.Random) -> tuple[str, Answer]:
    n = rng.randint(4, 40)
    return f"Each of {n} people shakes hands once with every other. How many handshakes are there?", math.comb(n, 2)


# Tier 4: a method and some care.


def _system(rng: random.Random) -> tuple[str, Answer]:
    x, y = rng.randint(-9, 12), rng.randint(-9, 12)
    a, b, c = rng.randint(2, 7), rng.randint(1, 6), rng.randint(1, 6)
    return f"If {a}x + {_times(b, 'y')} = {a * x + b * y} and x - {_times(c, 'y')} = {x - c * y}, what is x + y?", x + y


def _quadratic(rng: random.Random) -> tuple[str, Answer]:
    p, q = rng.sample([n for n in range(-9, 13) if n], 2)
    b, c = -(p + q), p * q
    middle = f" {'+' if b > 0 else '-'} {_times(abs(b), 'x')}" if b else ""
    return f"What is the larger root of x^2{middle} {'+' if c > 0 else '-'} {abs(c)} = 0?", max(p, q)


def _divisors(rng: random.Random) -> tuple[str, Answer]:
    n = math.prod(rng.choice((2, 2, 3, 3, 5, 7)) for _ in range(rng.randint(3, 6)))
    return f"How many positive divisors does {n} have?", len(_divisors_of(n))


def _power_mod(rng: random.Random) -> tuple[str, Answer]:
    a, n, m = rng.randint(2, 12), rng.randint(5, 60), rng.randint(3, 20)
    return f"What is the remainder when {a}^{n} is divided by {m}?", pow(a, n, m)


def _committee(rng: random.Random) -> tuple[str, Answer]:
    w, m = rng.randint(3, 8), rng.randint(3, 8)
    a, b = rng.randint(1, w), rng.randint(1, m)
    ways = math.comb(w, a) * math.comb(m, b)
    return f"How many committees of {a} of {w} women and {b} of {m} men can be formed?", ways


def _arrangements(rng: random.Random) -> tuple[str, Answer]:
    word = rng.choice(WORDS)
    word = "".join(rng.sample(word, rng.randint(4, len(word))))
    ways = math.factorial(len(word)) // math.prod(math.factorial(word.count(letter)) for letter in set(word))
    return f"In how many different orders can the letters of {word} be written?", ways


def _series(rng: random.Random) -> tuple[str, Answer]:
    a, d, n = rng.randint(1, 12), rng.randint(2, 9), rng.randint(8, 40)
    return f"What is the sum {a} + {a + d} + {a + 2 * d} + ... + {a + (n - 1) * d} of an arithmetic series?", n * (
        2 * a + (n - 1) * d
    ) // 2


def _dice(rng: random.Random) -> tuple[str, Answer]:
    dice, total = rng.choice(((2, rng.randint(3, 11)), (3, rng.randint(4, 17))))
    hits = sum(sum(roll) == total for roll in product(range(1, 7), repeat=dice))
    return f"{dice} fair dice are rolled. What is the probability that they show {total} in total?", Fraction(
        hits, 6**dice
    )


def _base(rng: random.Random) -> tuple[str, Answer]:
    base, n = rng.randint(2, 9), rng.randint(30, 600)
    digits, rest = "", n
    while rest:
        digits, rest = f"{rest % base}{digits}", rest // base
    return f"What is the base-10 value of the number written {digits} in base {base}?", n


def _symmetric(rng: random.Random) -> tuple[str, Answer]:
    s, p = rng.randint(2, 15), rng.randint(-20, 20)
    return f"If x + y = {s} and xy = {p}, what is x^2 + y^2?", s * s - 2 * p


# Tier 5: two ideas at once.


def _either_not(rng: random.Random) -> tuple[str, Answer]:
    a, b, c = rng.sample((2, 3, 4, 5, 6, 7, 9, 11), 3)
    n = rng.randint(100, 900)
    hits = sum((k % a == 0 or k % b == 0) and k % c != 0 for k in range(1, n + 1))
    return f"How many positive integers up to {n} are divisible by {a} or {b} but not by {c}?", hits


def _paths(rng: random.Random) -> tuple[str, Answer]:
    w, h = rng.randint(3, 8), rng.randint(3, 8)
    x, y = rng.randint(1, w - 1), rng.randint(1, h - 1)
    ways = math.comb(w + h, w) - math.comb(x + y, x) * math.comb(w + h - x - y, w - x)
    return f"How many paths of unit steps right or up lead from (0, 0) to ({w}, {h}) without passing ({x}, {y})?", ways


def _zeros(rng: random.Random) -> tuple[str, Answer]:
    n = rng.randint(40, 3000)
    return f"With how many zeros does {n}! end?", sum(n // 5**k for k in range(1, 6))


def _last_digits(rng: random.Random) -> tuple[str, Answer]:
    a, n = rng.randint(3, 99), rng.randint(50, 2026)
    return f"What is the remainder when {a}^{n} is divided by 1000?", pow(a, n, 1000)


def _congruences(rng: random.Random) -> tuple[str, Answer]:
    p, q, r = rng.sample((3, 4, 5, 7, 11, 13), 3)
    if math.gcd(p, q) * math.gcd(p, r) * math.gcd(q, r) > 1:
        p, q, r = 5, 7, 9
    n = rng.randrange(p * q * r)
    rests = f"{n % p} when divided by {p}, {n % q} when divided by {q} and {n % r} when divided by {r}"
    return f"What is the smallest non-negative integer that leaves the remainders {rests}?", n


def _shares(rng: random.Random) -> tuple[str, Answer]:
    people, least = rng.randint(3, 6), rng.randint(1, 3)
    coins = people * least + rng.randint(3, 15)
    ways = math.comb(coins - people * least + people - 1, people - 1)
    return (
        f"In how many ways can {coins} equal coins be shared among {people} people who each get at least {least}?",
        ways,
    )


def _geometric(rng: random.Random) -> tuple[str, Answer]:
    a, q = rng.randint(1, 12), Fraction(*sorted(rng.sample(range(1, 9), 2)))
    return f"What is the sum of the infinite geometric series with first term {a} and ratio {q}?", a / (1 - q)


def _root_squares(rng: random.Random) -> tuple[str, Answer]:
    a, b, c = rng.randint(2, 6), rng.randint(1, 15), rng.randint(1, 12)
    return f"If r and s are the roots of {a}x^2 - {_times(b, 'x')} + {c} = 0, what is r^2 + s^2?", Fraction(
        b * b - 2 * a * c, a * a
    )


def _diamond(rng: random.Random) -> tuple[str, Answer]:
    n, k = rng.randint(5, 60), rng.randint(1, 4)
    hits = sum(4 * distance for distance in range(k, n + 1))
    return f"How many integer pairs (x, y) satisfy {k} <= |x| + |y| <= {n}?", hits


def _coprime(rng: random.Random) -> tuple[str, Answer]:
    n = rng.randint(30, 900)
    return f"How many positive integers less than {n} have no common factor with {n} but 1?", sum(
        math.gcd(k, n) == 1 for k in range(1, n)
    )


def _no_adjacent(rng: random.Random) -> tuple[str, Answer]:
    n = rng.randint(5, 16)
    k = rng.randint(2, (n + 1) // 2)
    return f"How many binary strings of length {n} have exactly {k} ones, no two of them adjacent?", math.comb(
        n - k + 1, k
    )


def _polynomial_rest(rng: random.Random) -> tuple[str, Answer]:
    a, b, c, r = rng.randint(1, 6), rng.randint(1, 9), rng.randint(1, 9), rng.randint(2, 6)
    value = a * r**4 - b * r**2 + c
    return f"What is the remainder when {_times(a, 'x^4')} - {_times(b, 'x^2')} + {c} is divided by x - {r}?", value


def _divisor_sum(rng: random.Random) -> tuple[str, Answer]:
    n = 2 * math.prod(rng.choice((2, 2, 3, 3, 5, 7, 11)) for _ in range(rng.randint(3, 6)))
    kind = rng.choice(("even", "odd"))
    total = sum(d for d in _divisors_of(n) if (d % 2 == 0) == (kind == "even"))
    return f"What is the sum of the {kind} positive divisors of {n}?", total


def _times(factor: int, unknown: str) -> str:
    return unknown if factor == 1 else f"{factor}{unknown}"


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def _divisors_of(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


TEMPLATES: Mapping[str, Mapping[str, Sequence[Template]]] = {
    "1": {
        "arithmetic": (_sum, _difference, _product, _gain, _loss, _half),
        "algebra": (_addend,),
        "counting": (_groups,),
    },
    "2": {
        "arithmetic": (_two_digit, _order, _two_steps, _leftover, _percent),
        "algebra": (_unknown, _next_term),
        "number theory": (_remainder,),
        "counting": (_between, _outfits),
    },
    "3": {
        "arithmetic": (_fractions, _average, _area, _speed),
        "algebra": (_linear, _both_sides),
        "number theory": (_divisor, _multiples, _primes),
        "counting": (_order_people, _handshakes),
    },
    "4": {
        "arithmetic": (_series,),
        "algebra": (_system, _quadratic, _symmetric),
        "number theory": (_divisors, _power_mod, _base),
        "counting": (_committee, _arrangements, _dice),
    },
    "5": {
        "algebra": (_geometric, _root_squares, _polynomial_rest),
        "number theory": (_either_not, _zeros, _last_digits, _congruences, _coprime, _divisor_sum),
        "counting": (_paths, _shares, _diamond, _no_adjacent),
    },
}

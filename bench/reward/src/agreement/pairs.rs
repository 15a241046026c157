//! Pairs of an answer and a truth. The answer is made from the truth, so the right verdict is known: the
//! answer is the truth itself, another spelling of it, or another value.

use super::form::{Form, Fraction, Number};

/// How the answer was made from the truth. The kinds before [`Kind::OffByOne`] keep the value of the truth,
/// and the others change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Same,
    Fenced,
    Boxed,
    Spaced,
    DisplayFraction,
    SlashedFraction,
    Decimal,
    Unreduced,
    TrailingZero,
    LeadingZeros,
    ThousandsComma,
    ThousandsBraced,
    Scientific,
    Percent,
    Money,
    Unit,
    Named,
    Sum,
    Commuted,
    RootInside,
    Parenthesised,
    Inequality,
    Turned,
    LeftRight,
    Reordered,
    BareWords,
    OtherCase,
    OffByOne,
    OtherSign,
    Tenfold,
    Inverted,
    Rounded,
    OtherBracket,
    Swapped,
    OtherElement,
    MoreElements,
    FewerElements,
    OtherWords,
    OtherUnit,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Same => "as it is",
            Self::Fenced => "between dollar signs",
            Self::Boxed => "`\\boxed{5}`",
            Self::Spaced => "spaces around it",
            Self::DisplayFraction => "`\\dfrac`",
            Self::SlashedFraction => "fraction with a slash",
            Self::Decimal => "fraction as a decimal",
            Self::Unreduced => "fraction not in lowest terms",
            Self::TrailingZero => "trailing zeros",
            Self::LeadingZeros => "leading zeros",
            Self::ThousandsComma => "thousands: `1,234`",
            Self::ThousandsBraced => "thousands: `1{,}234`",
            Self::Scientific => "power of ten",
            Self::Percent => "percent",
            Self::Money => "dollars: `\\$5`",
            Self::Unit => "unit: `5\\text{ cm}`",
            Self::Named => "named: `x = 5`",
            Self::Sum => "as a sum: `6 - 1`",
            Self::Commuted => "terms in another order",
            Self::RootInside => "factor under the root",
            Self::Parenthesised => "in parentheses",
            Self::Inequality => "interval as an inequality",
            Self::Turned => "equation turned round",
            Self::LeftRight => "`\\left`, `\\right`",
            Self::Reordered => "in another order",
            Self::BareWords => "words without `\\text`",
            Self::OtherCase => "words in capitals",
            Self::OffByOne => "a number off by one",
            Self::OtherSign => "the other sign",
            Self::Tenfold => "ten times as much",
            Self::Inverted => "upside down",
            Self::Rounded => "rounded to six places",
            Self::OtherBracket => "another bracket",
            Self::Swapped => "coordinates swapped",
            Self::OtherElement => "another element",
            Self::MoreElements => "one element more",
            Self::FewerElements => "one element fewer",
            Self::OtherWords => "another word",
            Self::OtherUnit => "another unit: `5\\text{ m}`",
        }
    }

    /// Whether the answer has the value of the truth.
    pub(super) fn keeps(self) -> bool {
        self < Self::OffByOne
    }
}

/// An answer, its truth, and how the answer was made from the truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) kind: Kind,
    pub(super) answer: String,
    pub(super) truth: String,
}

/// All pairs that can be made from a truth. For percentages and units, a separate truth is first made from
/// `truth`.
pub(super) fn pairs_of(truth: &str) -> Vec<Pair> {
    let mut pairs = Pairs { truth, pairs: Vec::new() };
    pairs.add(Kind::Same, truth);
    pairs.add(Kind::Fenced, format!("${truth}$"));
    pairs.add(Kind::Boxed, format!("\\boxed{{{truth}}}"));
    pairs.add(Kind::Spaced, format!("\\, {truth} \\;"));
    if truth.contains("\\frac") {
        pairs.add(Kind::DisplayFraction, truth.replace("\\frac", "\\dfrac"));
    }
    match Form::of(truth) {
        Form::Number(number) => pairs.number(&number),
        Form::Fraction(fraction) => pairs.fraction(fraction),
        Form::Bracketed { open, close, items } => pairs.bracketed(open, close, &items),
        Form::List(items) => pairs.elements(&items, "", ""),
        Form::Set(items) => pairs.elements(&items, "\\{", "\\}"),
        Form::Words(words) => {
            pairs.add(Kind::BareWords, &words);
            pairs.add(Kind::OtherCase, format!("\\text{{{}}}", words.to_uppercase()));
            pairs.add_some(Kind::OtherWords, other_word(&words).map(|other| format!("\\text{{{other}}}")));
        }
        Form::Other => pairs.other(),
    }
    pairs.pairs
}

struct Pairs<'a> {
    truth: &'a str,
    pairs: Vec<Pair>,
}

impl Pairs<'_> {
    fn add(&mut self, kind: Kind, answer: impl Into<String>) {
        let answer = answer.into();
        // An answer that equals the truth, such as a reversed palindrome, does not test anything.
        if kind == Kind::Same || answer != self.truth {
            self.pairs.push(Pair { kind, answer, truth: self.truth.to_owned() });
        }
    }

    fn add_some(&mut self, kind: Kind, answer: Option<String>) {
        if let Some(answer) = answer {
            self.add(kind, answer);
        }
    }

    fn number(&mut self, number: &Number) {
        let plain = number.plain();
        let point = if number.is_integer() { ".0" } else { "0" };
        self.add(Kind::TrailingZero, format!("{plain}{point}"));
        if number.digits.len() > 3 {
            self.add(Kind::ThousandsComma, number.grouped(","));
            self.add(Kind::ThousandsBraced, number.grouped("{,}"));
        }
        let percent = format!("{plain}\\%");
        self.pairs.push(Pair { kind: Kind::Percent, answer: percent, truth: number.hundredth() });
        if !number.is_zero() {
            let in_unit = |unit: &str| format!("{plain}\\text{{ {unit}}}");
            self.pairs.push(Pair { kind: Kind::OtherUnit, answer: in_unit("m"), truth: in_unit("cm") });
        }
        self.add(Kind::Parenthesised, format!("({plain})"));
        self.add(Kind::Money, format!("\\${plain}"));
        self.add(Kind::Unit, format!("{plain}\\text{{ cm}}"));
        self.add(Kind::Named, format!("x = {plain}"));
        let further = if plain == "7" { "8" } else { "7" };
        self.add(Kind::MoreElements, format!("{plain}, {further}"));
        if number.is_integer() {
            self.integer(number);
        }
        self.add_some(Kind::OffByOne, off_by_one(&plain));
        if !number.is_zero() {
            self.add(Kind::OtherSign, number.signed(!number.is_negative));
        }
    }

    fn integer(&mut self, number: &Number) {
        let plain = number.plain();
        if let Some(more) = off_by_one(&plain) {
            // `off_by_one` turns -5 into -6, so a negative number needs `+ 1`.
            self.add(Kind::Sum, format!("{more} {} 1", if number.is_negative { "+" } else { "-" }));
        }
        if !number.is_negative && number.digits.len() < 3 {
            self.add(Kind::LeadingZeros, format!("{plain:0>3}"));
        }
        let bare = plain.trim_end_matches('0');
        let zeros = plain.len() - bare.len();
        if !number.is_zero() && zeros > 0 {
            self.add(Kind::Scientific, format!("{bare} \\times 10^{{{zeros}}}"));
        }
        if !number.is_zero() {
            self.add(Kind::Tenfold, format!("{plain}0"));
        }
    }

    fn fraction(&mut self, fraction: Fraction) {
        self.add(Kind::SlashedFraction, fraction.slashed());
        let twice = Fraction { top: 2 * fraction.top, bottom: 2 * fraction.bottom, ..fraction };
        self.add(Kind::Unreduced, twice.written());
        self.add(Kind::Parenthesised, format!("({})", fraction.written()));
        self.add(Kind::Named, format!("x = {}", fraction.written()));
        if fraction.top > 0 && !fraction.is_negative {
            let (less, one) =
                (Fraction { top: fraction.top - 1, ..fraction }, Fraction { top: 1, ..fraction });
            self.add(Kind::Sum, format!("{} + {}", less.written(), one.written()));
        }
        match fraction.decimal() {
            Some(decimal) => self.add(Kind::Decimal, decimal),
            None => self.add(Kind::Rounded, fraction.rounded(6)),
        }
        self.add(Kind::OffByOne, Fraction { top: fraction.top + 1, ..fraction }.written());
        self.add(Kind::OtherSign, Fraction { is_negative: !fraction.is_negative, ..fraction }.written());
        let inverted = Fraction { top: fraction.bottom, bottom: fraction.top, ..fraction };
        self.add(Kind::Inverted, inverted.written());
    }

    fn other(&mut self) {
        if let Some((left, right)) = self.truth.split_once('=')
            && !right.contains('=')
        {
            self.add(Kind::Turned, format!("{} = {}", right.trim(), left.trim()));
        }
        let mut parts: Vec<&str> = self.truth.split("\\cup").map(str::trim).collect();
        parts.reverse();
        if parts.len() > 1 {
            self.add(Kind::Reordered, parts.join(" \\cup "));
        }
        self.add_some(Kind::Commuted, commuted(self.truth));
        self.add_some(Kind::RootInside, root_inside(self.truth));
        self.add_some(Kind::OffByOne, off_by_one(self.truth));
    }

    fn bracketed(&mut self, open: char, close: char, items: &[String]) {
        let written = |open: char, items: &[String]| format!("{open}{}{close}", items.join(", "));
        self.add(Kind::LeftRight, format!("\\left{open}{}\\right{close}", items.join(", ")));
        if let [first, last] = items {
            let other = if open == '(' { '[' } else { '(' };
            self.add(Kind::OtherBracket, written(other, items));
            self.add_some(Kind::Inequality, inequality(open, close, first, last));
            if first != last {
                self.add(Kind::Swapped, written(open, &[last.clone(), first.clone()]));
            }
        }
        let changed = off_by_one_in_last(items).map(|changed| written(open, &changed));
        self.add_some(Kind::OtherElement, changed);
    }

    fn elements(&mut self, items: &[String], open: &str, close: &str) {
        let written = |items: &[String]| format!("{open}{}{close}", items.join(", "));
        let reversed: Vec<String> = items.iter().rev().cloned().collect();
        if reversed != items {
            self.add(Kind::Reordered, written(&reversed));
        }
        self.add_some(Kind::OtherElement, off_by_one_in_last(items).map(|changed| written(&changed)));
        let more: Vec<String> = items.iter().cloned().chain(["97".to_owned()]).collect();
        self.add(Kind::MoreElements, written(&more));
        if let [fewer @ .., _] = items
            && !fewer.is_empty()
        {
            self.add(Kind::FewerElements, written(fewer));
        }
    }
}

/// Moves the first term of a sum to the end. The first term is the part before the first plus sign that is
/// outside of parentheses, brackets and braces.
fn commuted(text: &str) -> Option<String> {
    let is_other = ["=", "<", ">", "\\in", "\\cup", "\\pm", "\\begin"].iter().any(|sign| text.contains(sign));
    let mut depth = 0_i32;
    let plus = text.char_indices().find(|(_, character)| {
        depth +=
            i32::from(matches!(character, '(' | '[' | '{')) - i32::from(matches!(character, ')' | ']' | '}'));
        *character == '+' && depth == 0
    });
    let (first, rest) = text.split_at(plus?.0);
    let (first, rest) = (first.trim(), rest[1..].trim());
    let sign = if first.starts_with('-') { "" } else { "+ " };
    (!is_other).then(|| format!("{rest} {sign}{first}"))
}

/// Rewrites `2\sqrt{3}` as `\sqrt{12}`.
fn root_inside(text: &str) -> Option<String> {
    let (factor, rest) = text.split_once("\\sqrt{")?;
    let radicand: u64 = rest.strip_suffix('}')?.parse().ok()?;
    let factor: u64 = factor.trim().parse().ok()?;
    Some(format!("\\sqrt{{{}}}", factor.checked_pow(2)?.checked_mul(radicand)?))
}

/// Writes an interval as an inequality. `(1, 2)` may be a point and `[1, 2]` a list, so they have no
/// inequality.
fn inequality(open: char, close: char, first: &str, last: &str) -> Option<String> {
    let above = if open == '[' { "\\le" } else { "<" };
    let below = if close == ']' { "\\le" } else { "<" };
    match (first, last) {
        ("-\\infty", "\\infty") => None,
        ("-\\infty", _) => Some(format!("x {below} {last}")),
        (_, "\\infty") => Some(format!("{first} {above} x")),
        _ if (open, close) == ('(', ')') || (open, close) == ('[', ']') => None,
        _ => Some(format!("{first} {above} x {below} {last}")),
    }
}

/// Replaces the first letter by the next one of the alphabet.
fn other_word(words: &str) -> Option<String> {
    let (at, letter) = words.char_indices().find(|(_, c)| c.is_ascii_alphabetic())?;
    let next = match letter {
        'z' => 'a',
        'Z' => 'A',
        other => char::from(u8::try_from(other).ok()? + 1),
    };
    Some(format!("{}{next}{}", &words[..at], &words[at + 1..]))
}

fn off_by_one_in_last(items: &[String]) -> Option<Vec<String>> {
    let (last, before) = items.split_last()?;
    Some(before.iter().cloned().chain([off_by_one(last)?]).collect())
}

/// Adds one to the first number in a text; for a decimal, to its last digit.
fn off_by_one(text: &str) -> Option<String> {
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let length = text[start..].find(|c| !is_number(c)).unwrap_or(text.len() - start);
    let (before, rest) = text.split_at(start);
    let (number, behind) = rest.split_at(length);
    let point = number.find('.').map_or(0, |at| number.len() - at - 1);
    let digits = number.replace('.', "");
    let more = format!("{:0>width$}", digits.parse::<u64>().ok()?.checked_add(1)?, width = digits.len());
    let (whole, decimals) = more.split_at(more.len() - point);
    let dot = if point > 0 { "." } else { "" };
    Some(format!("{before}{whole}{dot}{decimals}{behind}"))
}

#[cfg(test)]
mod tests {
    use super::{Kind, off_by_one, pairs_of};

    fn answer(truth: &str, kind: Kind) -> Option<String> {
        pairs_of(truth).into_iter().find(|pair| pair.kind == kind).map(|pair| pair.answer)
    }

    #[test]
    fn each_perturbation_by_hand() {
        for (truth, kind, wanted) in [
            ("1200", Kind::Scientific, "12 \\times 10^{2}"),
            ("1,200", Kind::ThousandsBraced, "1{,}200"),
            ("7", Kind::LeadingZeros, "007"),
            ("-7", Kind::OtherSign, "7"),
            ("-\\frac34", Kind::Inverted, "-\\frac{4}{3}"),
            ("\\frac13", Kind::Rounded, "0.333333"),
            ("(3,4]", Kind::OtherBracket, "[3, 4]"),
            ("(3,4]", Kind::OtherElement, "(3, 5]"),
            ("3, 5, 7", Kind::Reordered, "7, 5, 3"),
            ("x^2+1", Kind::OffByOne, "x^3+1"),
            ("-5", Kind::Sum, "-6 + 1"),
            ("-13x+3", Kind::Commuted, "3 -13x"),
            ("x^{2+1} + 2 - y", Kind::Commuted, "2 - y + x^{2+1}"),
            ("2 \\sqrt{3}", Kind::RootInside, "\\sqrt{12}"),
            ("(3,4]", Kind::Inequality, "3 < x \\le 4"),
            ("[2,\\infty)", Kind::Inequality, "2 \\le x"),
            ("5", Kind::OtherUnit, "5\\text{ m}"),
            ("y = 2x", Kind::Turned, "2x = y"),
            ("(1,2) \\cup (3,4)", Kind::Reordered, "(3,4) \\cup (1,2)"),
            ("\\text{(B)}", Kind::OtherWords, "\\text{(C)}"),
        ] {
            assert_eq!(answer(truth, kind).as_deref(), Some(wanted), "{truth} {kind:?}");
        }
        assert_eq!(answer("0", Kind::OtherSign), None);
        assert_eq!(off_by_one("1.99"), Some("2.00".to_owned()));
        assert_eq!(off_by_one(".09"), Some(".10".to_owned()));
        assert_eq!(off_by_one("\\pi"), None);
    }
}

//! The meanings of words: functions, constants, multipliers, units, and words without a meaning.

use super::tree::{Function, Units};

/// The meaning of a sequence of letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Pi,
    Euler,
    Imaginary,
    Infinity,
    Sqrt,
    Log,
    /// The logarithm to base ten.
    Lg,
    Function(Function),
    /// A number word such as "million".
    Multiplier(i64),
    Percent,
    /// "and" or "or".
    Separator,
    /// A unit, or a word that stands only beside units.
    Unit,
    /// Up to three letters without another meaning: a product of variables.
    Letters,
    /// A longer word without another meaning: the name of a counted thing.
    Noun,
}

/// Maximum number of letters of a product of variables without spaces.
const LETTERS_MAX: usize = 3;

/// Words that stand between units.
const FILLERS: &[&str] =
    &["per", "of", "the", "in", "square", "sq", "cubic", "squared", "cubed", "unit", "units", "each"];

/// Short words that are answers and not products of variables.
const ANSWERS: &[&str] = &["no", "on", "yes", "all", "odd", "one", "two", "six", "ten"];

/// The spellings of all units that are distinguished, with their names. Degrees are not in the list, because
/// an angle is written with or without a degree sign.
const UNITS: &[(&str, &str)] = &[
    ("mm", "millimeter"),
    ("millimeter", "millimeter"),
    ("millimetre", "millimeter"),
    ("cm", "centimeter"),
    ("centimeter", "centimeter"),
    ("centimetre", "centimeter"),
    ("meter", "meter"),
    ("metre", "meter"),
    ("km", "kilometer"),
    ("kilometer", "kilometer"),
    ("kilometre", "kilometer"),
    ("inch", "inch"),
    ("inches", "inch"),
    ("ft", "foot"),
    ("foot", "foot"),
    ("feet", "foot"),
    ("yd", "yard"),
    ("yard", "yard"),
    ("mi", "mile"),
    ("mile", "mile"),
    ("mg", "milligram"),
    ("milligram", "milligram"),
    ("gram", "gram"),
    ("kg", "kilogram"),
    ("kilogram", "kilogram"),
    ("oz", "ounce"),
    ("ounce", "ounce"),
    ("lb", "pound"),
    ("lbs", "pound"),
    ("pound", "pound"),
    ("ton", "ton"),
    ("ml", "milliliter"),
    ("milliliter", "milliliter"),
    ("liter", "liter"),
    ("litre", "liter"),
    ("gallon", "gallon"),
    ("gal", "gallon"),
    ("quart", "quart"),
    ("pint", "pint"),
    ("cup", "cup"),
    ("ms", "millisecond"),
    ("millisecond", "millisecond"),
    ("sec", "second"),
    ("second", "second"),
    ("min", "minute"),
    ("minute", "minute"),
    ("hr", "hour"),
    ("hrs", "hour"),
    ("hour", "hour"),
    ("day", "day"),
    ("week", "week"),
    ("month", "month"),
    ("year", "year"),
    ("am", "am"),
    ("pm", "pm"),
    ("usd", "dollar"),
    ("dollar", "dollar"),
    ("cent", "cent"),
    ("euro", "euro"),
    ("pence", "pence"),
    ("rupee", "rupee"),
    ("yen", "yen"),
    ("kmh", "kilometer per hour"),
    ("kph", "kilometer per hour"),
    ("mph", "mile per hour"),
    ("celsius", "celsius"),
    ("fahrenheit", "fahrenheit"),
    ("kelvin", "kelvin"),
    ("radian", "radian"),
    ("newton", "newton"),
    ("joule", "joule"),
    ("watt", "watt"),
    ("volt", "volt"),
    ("hz", "hertz"),
    ("hertz", "hertz"),
];

/// Single letters that are units only in text (`\text{}`) or after a slash.
const LETTER_UNITS: &[(&str, &str)] =
    &[("m", "meter"), ("g", "gram"), ("s", "second"), ("h", "hour"), ("l", "liter")];

/// The unit of a lower-case word, in the singular.
fn unit(word: &str) -> Option<&'static str> {
    let found = |wanted: &str| UNITS.iter().find(|(alias, _)| *alias == wanted).map(|(_, name)| *name);
    found(word).or_else(|| word.strip_suffix('s').and_then(found))
}

/// The meaning of a word.
pub(super) fn classify(word: &str) -> Meaning {
    if let Some(known) = function(word) {
        return known;
    }
    let lower = word.to_ascii_lowercase();
    match lower.as_str() {
        "and" | "or" => Meaning::Separator,
        "percent" => Meaning::Percent,
        "hundred" => Meaning::Multiplier(100),
        "thousand" => Meaning::Multiplier(1_000),
        "million" => Meaning::Multiplier(1_000_000),
        "billion" => Meaning::Multiplier(1_000_000_000),
        "trillion" => Meaning::Multiplier(1_000_000_000_000),
        "dozen" => Meaning::Multiplier(12),
        "deg" | "degree" | "degrees" => Meaning::Unit,
        known if FILLERS.contains(&known) || unit(known).is_some() => Meaning::Unit,
        answer if ANSWERS.contains(&answer) => Meaning::Noun,
        short if short.chars().count() <= LETTERS_MAX => Meaning::Letters,
        _ => Meaning::Noun,
    }
}

fn function(word: &str) -> Option<Meaning> {
    Some(match word {
        "pi" => Meaning::Pi,
        "e" => Meaning::Euler,
        "i" => Meaning::Imaginary,
        "inf" | "infinity" | "infty" | "oo" => Meaning::Infinity,
        "sqrt" => Meaning::Sqrt,
        "log" => Meaning::Log,
        "lg" => Meaning::Lg,
        "sin" => Meaning::Function(Function::Sin),
        "cos" => Meaning::Function(Function::Cos),
        "tan" => Meaning::Function(Function::Tan),
        "cot" => Meaning::Function(Function::Cot),
        "csc" => Meaning::Function(Function::Csc),
        "arcsin" | "asin" => Meaning::Function(Function::Arcsin),
        "arccos" | "acos" => Meaning::Function(Function::Arccos),
        "arctan" | "atan" => Meaning::Function(Function::Arctan),
        "sinh" => Meaning::Function(Function::Sinh),
        "cosh" => Meaning::Function(Function::Cosh),
        "tanh" => Meaning::Function(Function::Tanh),
        "exp" => Meaning::Function(Function::Exp),
        "ln" => Meaning::Function(Function::Ln),
        "abs" => Meaning::Function(Function::Abs),
        _ => return None,
    })
}

/// The meaning of a LaTeX command that is also a word; `\sec` is the secant and not a second.
pub(super) fn classify_command(name: &str) -> Option<Meaning> {
    match name {
        "sec" => Some(Meaning::Function(Function::Sec)),
        "inf" | "oo" | "e" | "i" | "abs" | "sqrt" => None,
        _ => function(name),
    }
}

/// Reads units word by word.
#[derive(Debug, Default)]
pub(super) struct UnitReader {
    units: Units,
    last: Option<&'static str>,
    is_divisor: bool,
    power: i32,
}

impl UnitReader {
    /// Reads the next words. With `is_text`, a single letter may be a unit.
    pub(super) fn read(&mut self, words: &str, is_text: bool) {
        let lower = words.replace('.', "").to_lowercase();
        for part in lower.split_inclusive(|c: char| !c.is_alphanumeric()) {
            let word = part.trim_end_matches(|c: char| !c.is_alphanumeric());
            self.read_word(word, is_text);
            if part.ends_with('/') {
                self.divide();
            }
        }
    }

    fn read_word(&mut self, word: &str, is_text: bool) {
        match word {
            "" => return,
            "per" => return self.divide(),
            "square" | "sq" => self.power = 2,
            "cubic" => self.power = 3,
            "squared" => self.raise(2),
            "cubed" => self.raise(3),
            _ => {}
        }
        let letter = || LETTER_UNITS.iter().find(|(alias, _)| *alias == word).map(|(_, name)| *name);
        let Some(name) = unit(word).or_else(|| if is_text { letter() } else { None }) else { return };
        let power = self.power.max(1);
        let count = self.units.entry(name).or_default();
        *count = count.saturating_add(if self.is_divisor { -power } else { power });
        self.last = Some(name);
        self.power = 0;
        self.is_divisor = false;
    }

    /// The next unit is a divisor.
    pub(super) fn divide(&mut self) {
        self.is_divisor = true;
    }

    /// Sets the power of the last unit.
    pub(super) fn raise(&mut self, power: i32) {
        let Some(count) = self.last.and_then(|last| self.units.get_mut(last)) else { return };
        *count = count.signum().saturating_mul(power);
    }

    /// The units that were read.
    pub(super) fn finish(self) -> Units {
        self.units
    }
}

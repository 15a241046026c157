//! Exact arithmetic: a recursive descent over sums, products, signs and parentheses.

use num_bigint::BigInt;
use num_rational::Ratio;
use num_traits::{One, Zero};

/// Maximum depth of parentheses and signs. It bounds the stack.
const DEPTH_MAX: usize = 64;

/// The value of an expression.
///
/// # Errors
/// What was found and what was expected.
pub(super) fn evaluate(text: &str) -> Result<Ratio<BigInt>, String> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    let value = parser.sum()?;
    match parser.peek() {
        None => Ok(value),
        Some(letter) => Err(format!("expected an operator at byte {}, found {letter:?}", parser.at)),
    }
}

/// An integer or a decimal, with a sign.
pub(super) fn parse_number(text: &str) -> Option<Ratio<BigInt>> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = [whole, fraction].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    if !all_digits || whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits: BigInt = format!("{whole}{fraction}").parse().ok()?;
    let scale = BigInt::from(10).pow(u32::try_from(fraction.len()).ok()?);
    let value = Ratio::new(digits, scale);
    Some(if is_negative { -value } else { value })
}

/// A value as text: an integer, a decimal with finitely many digits, or a fraction.
pub(super) fn shown(value: &Ratio<BigInt>) -> String {
    let mut rest = value.denom().clone();
    let mut places = [0_u32; 2];
    for (count, factor) in places.iter_mut().zip([2, 5]) {
        let factor = BigInt::from(factor);
        while (&rest % &factor).is_zero() {
            rest /= &factor;
            *count += 1;
        }
    }
    let digits = places[0].max(places[1]);
    if !rest.is_one() {
        return value.to_string();
    }
    if digits == 0 {
        return value.numer().to_string();
    }
    let scaled = (value * BigInt::from(10).pow(digits)).to_integer();
    let (sign, magnitude) = (if scaled < BigInt::zero() { "-" } else { "" }, scaled.magnitude().to_string());
    let padded = format!("{magnitude:0>width$}", width = digits as usize + 1);
    let (whole, fraction) = padded.split_at(padded.len() - digits as usize);
    format!("{sign}{whole}.{fraction}")
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    /// The next character that is not white space.
    fn peek(&mut self) -> Option<char> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.text[self.at..].chars().next()
    }

    /// Takes the next character that is not white space if it is one of `letters`.
    fn take(&mut self, letters: &[char]) -> Option<char> {
        let letter = self.peek().filter(|letter| letters.contains(letter))?;
        self.at += letter.len_utf8();
        Some(letter)
    }

    fn sum(&mut self) -> Result<Ratio<BigInt>, String> {
        let mut value = self.product()?;
        while let Some(sign) = self.take(&['+', '-', '−']) {
            let other = self.product()?;
            value = if sign == '+' { value + other } else { value - other };
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<Ratio<BigInt>, String> {
        let mut value = self.factor()?;
        while let Some(sign) = self.take(&['*', '/', '×', '÷']) {
            let other = self.factor()?;
            if matches!(sign, '*' | '×') {
                value *= other;
            } else if other.is_zero() {
                return Err("division by zero".to_owned());
            } else {
                value /= other;
            }
        }
        Ok(value)
    }

    fn factor(&mut self) -> Result<Ratio<BigInt>, String> {
        if self.depth >= DEPTH_MAX {
            return Err(format!("expected at most {DEPTH_MAX} levels"));
        }
        self.depth += 1;
        let value = match self.take(&['-', '−', '+', '(']) {
            Some('(') => {
                let value = self.sum()?;
                let closed = self.take(&[')']).is_some();
                if !closed {
                    return Err(format!("expected a closing parenthesis at byte {}", self.at));
                }
                value
            }
            Some('+') => self.factor()?,
            Some(_) => -self.factor()?,
            None => self.number()?,
        };
        self.depth -= 1;
        Ok(value)
    }

    fn number(&mut self) -> Result<Ratio<BigInt>, String> {
        let rest = &self.text[self.at..];
        let length = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let number = parse_number(&rest[..length]);
        let number = number.ok_or_else(|| format!("expected a number at byte {}", self.at))?;
        self.at += length;
        Ok(number)
    }
}

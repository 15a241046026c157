//! The value of a number as it is written.

use num_bigint::BigInt;
use num_traits::{One, Zero};

use super::super::lexer::Numeral;
use super::super::tree::{Rational, Unparsed};

/// Maximum size of a number's power of ten.
const TEN_POWER_MAX: i64 = 1200;

/// The exact value of a numeral.
pub(super) fn rational(numeral: &Numeral) -> Result<Rational, Unparsed> {
    let integer = |digits: &str| match digits {
        "" => Ok(BigInt::zero()),
        _ => BigInt::parse_bytes(digits.as_bytes(), 10).ok_or(Unparsed),
    };
    let shift = i64::try_from(numeral.fraction).map_err(|_| Unparsed)?;
    if numeral.exponent.abs() > TEN_POWER_MAX {
        return Err(Unparsed);
    }
    let ten = BigInt::from(10);
    let mut top = integer(&numeral.digits)?;
    let mut bottom = BigInt::one();
    if numeral.repeat > 0 {
        let once = &numeral.digits[..numeral.digits.len() - numeral.repeat];
        top -= integer(once)?;
        bottom = ten.pow(u32::try_from(numeral.repeat).map_err(|_| Unparsed)?) - 1;
    }
    let power = numeral.exponent - shift;
    let factor = ten.pow(u32::try_from(power.unsigned_abs()).map_err(|_| Unparsed)?);
    if power < 0 {
        bottom *= factor;
    } else {
        top *= factor;
    }
    Ok(Rational::new(top, bottom))
}

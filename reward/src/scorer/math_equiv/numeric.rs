//! Evaluates expressions in complex 64-bit floats. Each value has a bound of its rounding noise.
//!
//! Variables have seeded values that depend only on their names. Odd roots of negative numbers are real.

use num_complex::Complex64;
use num_traits::{ToPrimitive, Zero};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::exact::Exact;
use super::tree::{Function, Node, NodeId, Rational, Tree};

/// Number of points at which answers with variables are evaluated.
pub(super) const POINTS: usize = 16;

/// Number of points at which all variables are positive, so that roots and logarithms are defined there.
const POSITIVE_POINTS: usize = 8;

/// Seed of the variables' values.
const SEED: u64 = 0x524f_4c4c_444f_434b;

/// Maximum lower number of a binomial coefficient that is not exact.
const BINOMIAL_STEPS_MAX: u32 = 64;

/// Bound of the rounding of one operation, relative to its result.
const ROUNDING: f64 = 4.0 * f64::EPSILON;

/// A value, and a bound of its rounding error. A value that is not finite means that the expression has no
/// value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Approx {
    pub(super) value: Complex64,
    pub(super) noise: f64,
}

const NOTHING: Approx = Approx { value: Complex64::new(f64::NAN, f64::NAN), noise: 0.0 };

impl Approx {
    /// The result of an operation. Its noise is the noise of the operands (`inherited`) plus the rounding of
    /// the operation.
    fn new(value: Complex64, inherited: f64) -> Self {
        let noise = inherited + value.norm() * ROUNDING;
        if !value.is_finite() || !noise.is_finite() {
            return NOTHING;
        }
        // An imaginary part below the noise counts as zero; its sign must not choose the branch of a root.
        let cleaned = |part: f64| if part.abs() <= noise { 0.0 } else { part };
        Self { value: Complex64::new(value.re, cleaned(value.im)), noise }
    }

    fn real(value: f64) -> Self {
        Self::new(Complex64::new(value, 0.0), 0.0)
    }

    /// Whether the expression has a value.
    pub(super) fn is_valid(&self) -> bool {
        self.value.is_finite()
    }

    /// Whether the value is a real number.
    pub(super) fn is_real(&self) -> bool {
        self.value.im == 0.0
    }
}

/// The nearest float; infinite if the number is too large.
pub(super) fn float(number: &Rational) -> f64 {
    // Floats end at 2^1024. Longer integers lose only bits that do not count.
    let longest = number.numer().bits().max(number.denom().bits());
    let shift = longest.saturating_sub(1000);
    let (top, bottom) = (number.numer().clone() >> shift, number.denom().clone() >> shift);
    top.to_f64().unwrap_or(f64::NAN) / bottom.to_f64().unwrap_or(f64::NAN)
}

/// The values of a variable at all points: their sizes are from 0.4 to 2.9, and they are positive at the
/// first [`POSITIVE_POINTS`].
fn variable(name: &str) -> [f64; POINTS] {
    // The FNV-1a hash of the name chooses the stream of random numbers.
    let stream = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    rng.set_stream(stream);
    let mut values: [f64; POINTS] = std::array::from_fn(|point| {
        let draw = rng.next_u64();
        let size = 0.4 + 2.5 * ((draw >> 11) as f64 / (1_u64 << 53) as f64);
        if point >= POSITIVE_POINTS && draw & 1 == 1 { -size } else { size }
    });
    // Each variable has at least one negative value.
    values[POINTS - 1] = -values[POINTS - 1].abs();
    values
}

/// The values of every node at every point: `points` values for each node, in the tree's order.
pub(super) fn evaluate(tree: &Tree, exact: &[Exact], points: usize) -> Vec<Approx> {
    let mut values: Vec<Approx> = Vec::with_capacity(tree.nodes().len() * points);
    for (id, node) in tree.nodes().iter().enumerate() {
        let known = exact.get(id).and_then(Exact::rational).map(|number| Approx::real(float(number)));
        if let Some(known) = known {
            values.extend(std::iter::repeat_n(known, points));
            continue;
        }
        if let Node::Variable(name) = node {
            values.extend(variable(name).into_iter().take(points).map(Approx::real));
            continue;
        }
        for point in 0..points {
            let at = |operand: NodeId| values.get(operand * points + point).copied().unwrap_or(NOTHING);
            let value = step(node, exact, at);
            values.push(value);
        }
    }
    values
}

fn step(node: &Node, exact: &[Exact], at: impl Fn(NodeId) -> Approx) -> Approx {
    match node {
        Node::Pi => Approx::real(std::f64::consts::PI),
        Node::Euler => Approx::real(std::f64::consts::E),
        Node::Imaginary => Approx::new(Complex64::i(), 0.0),
        Node::Number(_) | Node::Infinity | Node::Variable(_) => NOTHING,
        Node::Negate(inside) => Approx::new(-at(*inside).value, at(*inside).noise),
        Node::Sum(a, b) => Approx::new(at(*a).value + at(*b).value, at(*a).noise + at(*b).noise),
        Node::Product(a, b) => product(at(*a), at(*b)),
        Node::Quotient(a, b) => quotient(at(*a), at(*b)),
        Node::Power { base, exponent } => {
            let rational = exact.get(*exponent).and_then(Exact::rational);
            power(at(*base), at(*exponent), rational)
        }
        Node::Root { index, radicand } => {
            let inverse = exact.get(*index).and_then(Exact::rational).filter(|index| !index.is_zero());
            let exponent = quotient(Approx::real(1.0), at(*index));
            power(at(*radicand), exponent, inverse.map(Rational::recip).as_ref())
        }
        Node::Logarithm { base, argument } => quotient(logarithm(at(*argument)), logarithm(at(*base))),
        Node::Binomial { of, choose } => {
            let choose = exact.get(*choose).and_then(Exact::rational).filter(|number| number.is_integer());
            match choose.and_then(|number| number.numer().to_u32()) {
                Some(count) if count <= BINOMIAL_STEPS_MAX => binomial(at(*of), count),
                _ => NOTHING,
            }
        }
        Node::Apply(function, inside) => apply(*function, at(*inside)),
    }
}

fn product(a: Approx, b: Approx) -> Approx {
    Approx::new(a.value * b.value, a.value.norm() * b.noise + b.value.norm() * a.noise)
}

fn quotient(a: Approx, b: Approx) -> Approx {
    let size = b.value.norm();
    if size <= b.noise {
        return NOTHING;
    }
    let value = a.value / b.value;
    Approx::new(value, (a.noise + value.norm() * b.noise) / size)
}

fn logarithm(x: Approx) -> Approx {
    let size = x.value.norm();
    if size <= x.noise { NOTHING } else { Approx::new(x.value.ln(), x.noise / size) }
}

fn power(base: Approx, exponent: Approx, rational: Option<&Rational>) -> Approx {
    let size = base.value.norm();
    if size <= base.noise || size == 0.0 {
        let is_positive = exponent.is_valid() && exponent.value.re > 0.0 && base.is_valid();
        // Under a root, the noise of a zero grows to the root of the noise.
        let grown = base.noise.powf(exponent.value.re.min(1.0));
        return if is_positive { Approx::new(Complex64::zero(), grown) } else { NOTHING };
    }
    let whole =
        rational.filter(|exponent| exponent.is_integer()).and_then(|exponent| exponent.numer().to_i32());
    let is_odd_root = rational.is_some_and(|exponent| exponent.denom().bit(0) && !exponent.is_integer());
    let value = match whole {
        Some(count) => base.value.powi(count),
        None if base.is_real() && exponent.is_real() && base.value.re > 0.0 => {
            Complex64::from(base.value.re.powf(exponent.value.re))
        }
        None if base.is_real() && is_odd_root => {
            let is_odd_power = rational.is_some_and(|exponent| exponent.numer().bit(0));
            let root = base.value.re.abs().powf(exponent.value.re);
            Complex64::from(if is_odd_power { -root } else { root })
        }
        None => base.value.powc(exponent.value),
    };
    let relative = exponent.value.norm() * (base.noise / size + ROUNDING) + size.ln().abs() * exponent.noise;
    Approx::new(value, value.norm() * relative)
}

fn binomial(of: Approx, count: u32) -> Approx {
    (0..count).fold(Approx::real(1.0), |value, step| {
        let factor = Approx::new(of.value - f64::from(step), of.noise);
        quotient(product(value, factor), Approx::real(f64::from(step) + 1.0))
    })
}

fn apply(function: Function, x: Approx) -> Approx {
    let z = x.value;
    let one = Approx::real(1.0);
    let smooth = |value: Complex64, slope: f64| Approx::new(value, x.noise * slope);
    let sine = || smooth(z.sin(), z.im.cosh());
    let cosine = || smooth(z.cos(), z.im.cosh());
    match function {
        Function::Sin => sine(),
        Function::Cos => cosine(),
        Function::Tan => quotient(sine(), cosine()),
        Function::Cot => quotient(cosine(), sine()),
        Function::Sec => quotient(one, cosine()),
        Function::Csc => quotient(one, sine()),
        Function::Arcsin => smooth(within_domain(x, f64::asin, Complex64::asin), steepness(z)),
        Function::Arccos => smooth(within_domain(x, f64::acos, Complex64::acos), steepness(z)),
        Function::Arctan if x.is_real() => smooth(Complex64::from(z.re.atan()), 1.0),
        Function::Arctan => smooth(z.atan(), 1.0),
        Function::Sinh => smooth(z.sinh(), z.re.cosh()),
        Function::Cosh => smooth(z.cosh(), z.re.cosh()),
        Function::Tanh => smooth(z.tanh(), 1.0),
        Function::Exp => smooth(z.exp(), z.exp().norm()),
        Function::Ln => logarithm(x),
        Function::Abs => smooth(Complex64::from(z.norm()), 1.0),
        Function::Floor => stepped(x, f64::floor),
        Function::Ceil => stepped(x, f64::ceil),
        // A value that is not exact is not a whole number.
        Function::Factorial => NOTHING,
    }
}

fn within_domain(x: Approx, real: fn(f64) -> f64, complex: fn(Complex64) -> Complex64) -> Complex64 {
    if x.is_real() && x.value.re.abs() <= 1.0 { Complex64::from(real(x.value.re)) } else { complex(x.value) }
}

/// The slope of the inverse sine. It has no bound at the ends of the domain, so it is limited there.
fn steepness(z: Complex64) -> f64 {
    let distance = (Complex64::from(1.0) - z * z).norm().sqrt();
    1.0 / distance.max(f64::EPSILON.sqrt())
}

fn stepped(x: Approx, round: fn(f64) -> f64) -> Approx {
    let below = round(x.value.re - x.noise);
    let is_sure = x.is_real() && below == round(x.value.re + x.noise);
    if is_sure { Approx::real(below) } else { NOTHING }
}

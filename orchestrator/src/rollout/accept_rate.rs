//! Of the groups with differing samples, the measured share that also passes the other gates.

/// Every step keeps this share of the weight of earlier evidence, because rates change as the policy learns.
pub(crate) const AGEING: f64 = 0.5;
/// A prior of two valid and two filtered groups. A few dozen groups outweigh it.
const PRIOR: f64 = 2.0;

/// A Beta posterior over a share of groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct AcceptRate {
    valid: f64,
    filtered: f64,
}

impl AcceptRate {
    pub(crate) fn record(&mut self, valid: bool) {
        if valid {
            self.valid += 1.0;
        } else {
            self.filtered += 1.0;
        }
    }

    /// The counts of valid and of filtered groups, as bits.
    pub(crate) fn to_bits(&self) -> [u64; 2] {
        [self.valid.to_bits(), self.filtered.to_bits()]
    }

    /// The inverse of [`AcceptRate::to_bits`]. Bits that are not a valid count are read as 0.
    pub(crate) fn from_bits(bits: [u64; 2]) -> Self {
        let [valid, filtered] = bits.map(|bits| {
            let count = f64::from_bits(bits);
            if count.is_finite() && count >= 0.0 { count } else { 0.0 }
        });
        Self { valid, filtered }
    }

    /// Reduces the weight of earlier evidence. This is called once per step.
    pub(crate) fn age(&mut self) {
        self.valid *= AGEING;
        self.filtered *= AGEING;
    }

    pub(crate) fn mean(&self) -> f64 {
        (self.valid + PRIOR) / (self.valid + self.filtered + 2.0 * PRIOR)
    }
}

#[cfg(test)]
mod tests {
    use super::AcceptRate;

    #[test]
    fn an_accept_rate_is_restored_from_its_bits() {
        let mut rate = AcceptRate::default();
        (0..30).for_each(|group| rate.record(group % 3 > 0));
        rate.age();
        let again = AcceptRate::from_bits(rate.to_bits());
        assert!((again.mean() - rate.mean()).abs() < 1e-12, "{again:?}");
        assert!((again.mean() - 12.0 / 19.0).abs() < 1e-12, "10 of 15, and the prior");
        let nonsense = AcceptRate::from_bits([f64::NAN.to_bits(), (-1.0_f64).to_bits()]);
        assert!((nonsense.mean() - 0.5).abs() < 1e-12);
    }
}

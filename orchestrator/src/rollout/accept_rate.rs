//! The measured share of groups that pass the filter, for on-demand launch.

/// The weight of earlier evidence is halved with every step, because the share moves as the policy learns.
const AGEING: f64 = 0.5;
/// A prior of two valid and two filtered groups: it is outweighed after a few dozen groups.
const PRIOR: f64 = 2.0;

/// A Beta posterior over the accept rate.
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

    /// Called once a step.
    pub(crate) fn age(&mut self) {
        self.valid *= AGEING;
        self.filtered *= AGEING;
    }

    pub(crate) fn mean(&self) -> f64 {
        (self.valid + PRIOR) / (self.valid + self.filtered + 2.0 * PRIOR)
    }

    /// The number of valid groups to count on among `running`: the mean less one standard deviation. One
    /// group too many costs its tokens; one group too few costs the time of a whole response at the end of
    /// the step.
    pub(crate) fn expected_at_least(&self, running: usize) -> f64 {
        let rate = self.mean();
        let expected = running as f64 * rate;
        (expected - (expected * (1.0 - rate)).sqrt()).max(0.0)
    }
}

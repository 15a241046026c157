//! Mean response length from observations of which some were cut off.
//!
//! A cancelled sample would have been at least as long as it was at its cut. An estimate without such samples
//! would prefer short answers, and one that took their lengths at the cut would be too small. The
//! Kaplan-Meier estimator (Kaplan and Meier 1958) counts them as survivors up to their cut. The mean is the
//! area under the survival curve, up to the token limit.

/// Maximum number of bins over `0..limit`. It bounds the memory; the resolution is 0.25 % of the limit.
const BINS_MAX: u32 = 400;

/// A histogram of finished and of censored lengths.
///
/// The last bin is the limit itself, where every response ends that has got so far.
#[derive(Debug, Clone)]
pub(crate) struct Survival {
    width: f64,
    finished: Vec<f64>,
    censored: Vec<f64>,
}

impl Survival {
    /// A histogram for lengths up to `limit` tokens.
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.max(1);
        let bins = limit.min(BINS_MAX);
        let width = f64::from(limit) / f64::from(bins);
        Self { width, finished: vec![0.0; bins as usize + 1], censored: vec![0.0; bins as usize + 1] }
    }

    fn bin(&self, tokens: f64) -> usize {
        ((tokens / self.width) as usize).min(self.finished.len() - 1)
    }

    pub(crate) fn finished(&mut self, tokens: f64) {
        let bin = self.bin(tokens);
        self.finished[bin] += 1.0;
    }

    pub(crate) fn censored(&mut self, tokens: f64) {
        let bin = self.bin(tokens);
        self.censored[bin] += 1.0;
    }

    /// Scales all counts by `kept`, so that the estimate follows a policy whose answers grow longer.
    pub(crate) fn age(&mut self, kept: f64) {
        for count in self.finished.iter_mut().chain(&mut self.censored) {
            *count *= kept;
        }
    }

    /// Mean length in tokens; `None` before the first finished sample.
    pub(crate) fn mean(&self) -> Option<f64> {
        let finished: f64 = self.finished.iter().sum();
        if finished <= 0.0 {
            return None;
        }
        let mut at_risk = finished + self.censored.iter().sum::<f64>();
        let mut surviving = 1.0;
        let mut mean = 0.0;
        let below_limit = self.finished.len() - 1;
        for (finished, censored) in self.finished.iter().zip(&self.censored).take(below_limit) {
            let ended = if at_risk > 0.0 { finished / at_risk } else { 1.0 };
            // Ends lie on average in the middle of their bin.
            mean += self.width * surviving * (1.0 - ended / 2.0);
            surviving *= 1.0 - ended.min(1.0);
            at_risk -= finished + censored;
            if surviving <= 0.0 || at_risk <= 0.0 {
                break;
            }
        }
        Some(mean)
    }
}

#[cfg(test)]
mod tests {
    use super::Survival;

    #[test]
    fn without_censoring_it_is_the_plain_mean() {
        let mut lengths = Survival::new(400);
        for tokens in [10.0, 20.0, 30.0, 340.0] {
            lengths.finished(tokens);
        }
        let mean = lengths.mean().unwrap();
        assert!((mean - 100.5).abs() < 1e-9, "mean={mean}: 100 and half a bin");
    }

    #[test]
    fn cut_samples_pull_the_mean_up_to_where_it_was() {
        let mut whole = Survival::new(1000);
        let mut cut = Survival::new(1000);
        let mut without = Survival::new(1000);
        // Lengths 0..1000; every other one may run for 500 tokens only.
        for tokens in 0..1000 {
            let tokens = f64::from(tokens);
            whole.finished(tokens);
            if (tokens as u32).is_multiple_of(2) && tokens > 500.0 {
                cut.censored(500.0);
            } else {
                cut.finished(tokens);
                without.finished(tokens);
            }
        }
        let (whole, cut, without) = (whole.mean().unwrap(), cut.mean().unwrap(), without.mean().unwrap());
        assert!((cut / whole - 1.0).abs() < 0.02, "cut={cut} whole={whole}");
        assert!(without / whole < 0.9, "leaving them out is biased: {without} of {whole}");
    }

    #[test]
    fn nothing_is_longer_than_the_limit() {
        let mut lengths = Survival::new(256);
        for _ in 0..10 {
            lengths.finished(256.0);
            lengths.censored(1e9);
        }
        assert_eq!(lengths.mean(), Some(256.0));
    }

    #[test]
    fn nothing_finished_means_nothing_known() {
        let mut lengths = Survival::new(100);
        lengths.censored(50.0);
        assert_eq!(lengths.mean(), None);
    }
}

//! A reference implementation of the clipped policy loss. Authors of trainers can compare their own
//! implementation with this one. The loss has PPO's clip with separate bounds (clip-higher, DAPO) and the dual
//! clip for negative advantages (Ye et al. 2020).

/// How the losses of tokens are aggregated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregation {
    /// The mean over all tokens of the batch.
    TokenMean,
    /// The sum over the tokens of each sequence, and then the mean over the sequences.
    SeqMeanTokenSum,
    /// The mean over the tokens of each sequence, and then the mean over the sequences.
    SeqMeanTokenMean,
}

/// The bounds of the probability ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip {
    /// `1 - low` is the lower bound.
    pub low: f64,
    /// `1 + high` is the upper bound.
    pub high: f64,
    /// The upper bound of the ratio for negative advantages (dual clip).
    pub c: f64,
}

/// One sequence. All lists have one entry per token.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Log-probabilities under the policy that generated the tokens.
    pub old_log_prob: &'a [f64],
    /// Log-probabilities under the policy that is being trained.
    pub log_prob: &'a [f64],
    /// The advantages of the tokens.
    pub advantages: &'a [f64],
    /// 1 for tokens that count, 0 for others.
    pub mask: &'a [f64],
}

impl Sequence<'_> {
    fn is_even(&self) -> bool {
        let tokens = self.mask.len();
        [self.old_log_prob, self.log_prob, self.advantages].iter().all(|list| list.len() == tokens)
    }
}

/// The loss and its metrics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicyLoss {
    /// The loss, which is minimised.
    pub loss: f64,
    /// The share of tokens whose loss was changed by [`Clip::low`] or [`Clip::high`].
    pub clip_fraction: f64,
    /// The share of tokens whose loss was changed by the dual clip.
    pub clip_fraction_lower: f64,
    /// The mean of `old_log_prob - log_prob` over tokens. Each difference is clamped to the range -20 to 20.
    pub kl: f64,
}

/// The maximum absolute value of a log ratio. Larger log ratios are clamped to this value, as in verl.
const LOG_RATIO_MAX: f64 = 20.0;

/// The loss over a batch. All lists of a sequence must have the same length. If the lengths differ, debug
/// builds panic, and release builds ignore the tokens after the end of the shortest list.
pub fn policy_loss(batch: &[Sequence<'_>], clip: Clip, aggregation: Aggregation) -> PolicyLoss {
    let (mut tokens, mut clipped, mut clipped_lower, mut kl) = (0.0, 0.0, 0.0, 0.0);
    let (mut loss_sum, mut sequence_losses) = (0.0, Vec::with_capacity(batch.len()));
    for sequence in batch {
        debug_assert!(sequence.is_even(), "the lists of a sequence differ in length");
        let (mut sequence_loss, mut sequence_tokens) = (0.0, 0.0);
        let log_probs = sequence.old_log_prob.iter().zip(sequence.log_prob);
        for ((old, new), (advantage, mask)) in log_probs.zip(sequence.advantages.iter().zip(sequence.mask)) {
            let log_ratio = (new - old).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX);
            let ratio = log_ratio.exp();
            let plain = -advantage * ratio;
            let bounded = -advantage * ratio.clamp(1.0 - clip.low, 1.0 + clip.high);
            let pessimistic = plain.max(bounded);
            let dual = -advantage * clip.c;
            let loss = if *advantage < 0.0 { pessimistic.min(dual) } else { pessimistic };
            sequence_loss += loss * mask;
            sequence_tokens += mask;
            kl -= log_ratio * mask;
            clipped += f64::from(bounded > plain) * mask;
            clipped_lower += f64::from(pessimistic > dual && *advantage < 0.0) * mask;
        }
        loss_sum += sequence_loss;
        tokens += sequence_tokens;
        sequence_losses.push((sequence_loss, sequence_tokens));
    }
    let sequences = sequence_losses.len().max(1) as f64;
    let loss = match aggregation {
        Aggregation::TokenMean => loss_sum / tokens.max(1.0),
        Aggregation::SeqMeanTokenSum => loss_sum / sequences,
        Aggregation::SeqMeanTokenMean => {
            sequence_losses.iter().map(|(loss, tokens)| loss / f64::max(*tokens, 1.0)).sum::<f64>()
                / sequences
        }
    };
    let share = |count: f64| count / tokens.max(1.0);
    PolicyLoss {
        loss,
        clip_fraction: share(clipped),
        clip_fraction_lower: share(clipped_lower),
        kl: share(kl),
    }
}

#[cfg(test)]
mod tests;

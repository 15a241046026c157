use super::{Aggregation, Clip, PolicyLoss, Sequence, policy_loss};

const CLIP: Clip = Clip { low: 0.2, high: 0.28, c: 10.0 };

/// The loss of one token with a probability ratio and an advantage.
fn of_token(ratio: f64, advantage: f64) -> PolicyLoss {
    let token =
        Sequence { old_log_prob: &[0.0], log_prob: &[ratio.ln()], advantages: &[advantage], mask: &[1.0] };
    policy_loss(&[token], CLIP, Aggregation::TokenMean)
}

fn assert_near(got: f64, wanted: f64) {
    assert!((got - wanted).abs() < 1e-12, "{got} is not {wanted}");
}

#[test]
fn each_bound_holds_on_its_side_only() {
    assert_near(of_token(1.0, 2.0).loss, -2.0);
    // For a positive advantage, the ratio is clipped above 1.28 and not below 0.8.
    assert_near(of_token(1.5, 1.0).loss, -1.28);
    assert_near(of_token(0.5, 1.0).loss, -0.5);
    // For a negative advantage, the ratio is clipped below 0.8 and not above 1.28, but counts as at most 10.
    assert_near(of_token(0.5, -1.0).loss, 0.8);
    assert_near(of_token(1.5, -1.0).loss, 1.5);
    assert_near(of_token(50.0, -1.0).loss, 10.0);
}

#[test]
fn clipped_tokens_are_counted_where_they_are_clipped() {
    assert_near(of_token(1.5, 1.0).clip_fraction, 1.0);
    assert_near(of_token(1.1, 1.0).clip_fraction, 0.0);
    assert_near(of_token(50.0, -1.0).clip_fraction_lower, 1.0);
    assert_near(of_token(50.0, 1.0).clip_fraction_lower, 0.0);
}

/// A sequence with a token of loss -1, and one with two tokens of loss -3 and a masked token.
fn two_sequences(aggregation: Aggregation) -> f64 {
    let even = [0.0; 3];
    let short = Sequence { old_log_prob: &even[..1], log_prob: &even[..1], advantages: &[1.0], mask: &[1.0] };
    let long =
        Sequence { old_log_prob: &even, log_prob: &even, advantages: &[3.0; 3], mask: &[1.0, 1.0, 0.0] };
    policy_loss(&[short, long], CLIP, aggregation).loss
}

#[test]
fn the_three_means_weigh_length_differently() {
    assert_near(two_sequences(Aggregation::TokenMean), -7.0 / 3.0);
    assert_near(two_sequences(Aggregation::SeqMeanTokenSum), -7.0 / 2.0);
    assert_near(two_sequences(Aggregation::SeqMeanTokenMean), -2.0);
}

#[test]
fn nothing_costs_nothing() {
    let empty = policy_loss(&[], CLIP, Aggregation::SeqMeanTokenMean);
    assert_eq!(empty, PolicyLoss { loss: 0.0, clip_fraction: 0.0, clip_fraction_lower: 0.0, kl: 0.0 });
}

//! Groups that are stopped because they are unlikely to become valid (`rollout.stop_unlikely`): when this saves tokens,
//! when it costs more than it saves, and that the weights of the groups that run on undo the bias.

use std::sync::Arc;
use std::time::Duration;

use rolldock::rollout::{Fill, GroupWeights, Launch, RolloutConfig, StopUnlikely, invariants};
use rolldock_reward::{Gates, GatesConfig, GroupFilter};
use rolldock_simengine::{AnswerKey, LengthConfig, ServerConfig, Workload, WorkloadConfig};

use crate::support::{EveryPrompt, ThreeKinds, World, in_virtual_time, prompt, prompts};

const SAMPLES: u32 = 16;
const STEP: usize = 32;

/// A model for which many prompts are solved always or never if `pass_sharpness` is high.
fn model(pass_sharpness: f64) -> Arc<Workload> {
    let length =
        LengthConfig { median_easy: 20.0, median_hard: 90.0, min: 3, max: 400, ..LengthConfig::default() };
    Arc::new(Workload::new(WorkloadConfig { length, pass_sharpness, ..WorkloadConfig::default() }))
}

/// Weighted sums over the samples of valid groups.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    samples: f64,
    tokens: f64,
    right: f64,
}

impl Sums {
    fn add(&mut self, weight: f64, samples: impl Iterator<Item = (u32, bool)>) {
        for (tokens, is_right) in samples {
            self.samples += weight;
            self.tokens += weight * f64::from(tokens);
            self.right += weight * f64::from(u8::from(is_right));
        }
    }

    fn length(&self) -> f64 {
        self.tokens / self.samples
    }

    fn accuracy(&self) -> f64 {
        self.right / self.samples
    }
}

/// The results of a run.
#[derive(Debug, Default)]
struct Outcome {
    generated: u64,
    weights: GroupWeights,
    weighted: Sums,
    plain: Sums,
    /// Over the valid groups of all prompts up to the last one that was accepted, from the draws alone.
    truth: Sums,
    stopped: u64,
    elapsed: Duration,
}

impl Outcome {
    /// The decoded tokens for each of the equally weighted groups that would give a mean of equal precision.
    fn tokens_of_effective_group(&self) -> f64 {
        self.generated as f64 / self.weights.effective_groups()
    }

    /// Checks that the weighted means are those of all valid groups, except for this share.
    fn check_bias(&self, share: f64) {
        let (weighted, truth) = (&self.weighted, &self.truth);
        let ratios = [weighted.length() / truth.length(), weighted.accuracy() / truth.accuracy()];
        assert!(ratios.iter().all(|ratio| (ratio - 1.0).abs() < share), "length, accuracy: {ratios:?}");
    }
}

fn run(
    workload: &Arc<Workload>,
    answers: Arc<dyn AnswerKey>,
    stop_unlikely: Option<StopUnlikely>,
    steps: usize,
) -> Outcome {
    in_virtual_time(async {
        let mut world = World::calm_of((Arc::clone(workload), answers), 2, 256, &ServerConfig::default());
        world.config = RolloutConfig {
            workers: 2,
            max_concurrent_prompts: 16,
            fill: Fill::Samples,
            samples_per_prompt: SAMPLES,
            gen_batch_size: 4 * STEP,
            max_response_length: 400,
            launch: Launch::OnDemand,
            gates: Arc::new(Gates::new(&GatesConfig::from(GroupFilter::default())).unwrap()),
            stop_unlikely,
            ..world.config
        };
        let feed = prompts(1_000_000);
        let mut manager = world.manager();
        let mut outcome = Outcome::default();
        let mut last_row = 0;
        for _ in 0..steps {
            let output = manager.generate(&feed, STEP).await.unwrap();
            assert_eq!(output.groups.len(), STEP);
            for group in &output.groups {
                world.check_samples(group);
                let weight = group.importance_weight().unwrap_or(1.0);
                let samples = || {
                    group.samples.iter().map(|sample| (sample.response_ids.len() as u32, sample.acc == 1.0))
                };
                outcome.weights.add(weight);
                outcome.weighted.add(f64::from(weight), samples());
                outcome.plain.add(1.0, samples());
                last_row = last_row.max(group.prompt.row);
            }
            outcome.elapsed += output.metrics.elapsed;
            let reasons = &output.metrics.totals.filtered_by_reason;
            outcome.stopped += reasons.get("unlikely").copied().unwrap_or(0);
            world.check_between_steps(&manager);
            outcome.generated =
                world.engine.servers().map(|server| server.stats().generation_tokens_total).sum();
            invariants::tokens_counted(&output.metrics.tokens_run, outcome.generated).unwrap();
        }
        outcome.truth = valid_up_to(&world, last_row);
        world.scope.close(Duration::from_secs(1)).await;
        outcome
    })
}

/// The valid groups of the rows up to `last`, from the draws alone.
fn valid_up_to(world: &World, last: u64) -> Sums {
    let mut truth = Sums::default();
    for row in 0..=last {
        let prompt = prompt(row);
        let samples: Vec<(u32, bool)> = (0..SAMPLES).map(|index| world.drawn(&prompt, 0, index)).collect();
        if samples.iter().any(|(_, is_right)| *is_right != samples[0].1) {
            truth.add(1.0, samples.into_iter());
        }
    }
    truth
}

/// Prompts of which two thirds are never useful are soon known to be so.
#[test]
fn stopping_saves_tokens_and_time_where_few_alike_samples_prove_much() {
    let of = |rule| run(&model(2.0), Arc::new(ThreeKinds), rule, 20);
    let (all, stopping) = (of(None), of(Some(StopUnlikely { below: 0.01, run_on: 0.25 })));
    assert!(stopping.stopped > 500, "{} groups were stopped", stopping.stopped);
    let [without, with] = [&all, &stopping].map(Outcome::tokens_of_effective_group);
    assert!(with < 0.92 * without, "{with} tokens with the rule, {without} without");
    assert!(stopping.elapsed < all.elapsed.mul_f64(0.95), "{:?}, {:?}", stopping.elapsed, all.elapsed);
    stopping.check_bias(0.01);
}

/// Where nearly all samples of many valid groups are alike, the few groups that run on for the others have high weights,
/// and their weighted means are as uncertain as those of far fewer groups.
#[test]
fn stopping_costs_more_than_it_saves_where_valid_groups_are_nearly_alike() {
    let of = |rule| run(&model(3.0), Arc::new(EveryPrompt), rule, 20);
    let (all, stopping) = (of(None), of(Some(StopUnlikely { below: 0.05, run_on: 0.25 })));
    let [without, with] = [&all, &stopping].map(Outcome::tokens_of_effective_group);
    assert!(with > 1.08 * without, "{with} tokens with the rule, {without} without");
    stopping.check_bias(0.02);
}

/// With a high bound the bias without weights is far above the error of the means, and the weights undo it.
#[test]
fn weights_undo_the_bias_of_stopping() {
    let stopping =
        run(&model(3.0), Arc::new(EveryPrompt), Some(StopUnlikely { below: 0.4, run_on: 0.25 }), 100);
    let plain = stopping.plain.accuracy() / stopping.truth.accuracy();
    assert!(plain < 0.95, "without weights the accuracy is biased: {plain}");
    stopping.check_bias(0.02);
}

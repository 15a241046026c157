//! Prompts of later epochs that are chosen by their results. The tests show when the choice saves tokens,
//! when it saves nothing, and that a killed run continues with the same history, choices and weights as a run
//! that was not killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rolldock::data::{DataError, Prompt, PromptSource};
use rolldock::dispatch::Position;
use rolldock::dispatch::history::{HistoryConfig, HistoryCounts, Sampling};
use rolldock::rollout::{AgentLoopManager, Group, Handed, Launch, PromptFeed, Restored, RolloutConfig};
use rolldock_ledger::{
    FORMAT, LedgerConfig, LedgerState, LedgerWriter, LifeRecord, QueueRecord, Record, RunRecord, ledger_file,
};
use rolldock_reward::{Gates, GatesConfig, GroupFilter};
use rolldock_simengine::{LengthConfig, Workload, WorkloadConfig};
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::support::{World, in_virtual_time, prompt};

const SAMPLES: u32 = 8;
const STEP: usize = 16;
const DIFFICULTY: HistoryConfig = HistoryConfig { sampling: Sampling::Difficulty, keep_min: 0.1 };

/// The rows `0..rows`, epoch after epoch, from the draw `next` on.
struct Epochs {
    rows: u64,
    epochs: u64,
    next: u64,
}

impl Epochs {
    fn visit(next: u64, rows: u64) -> Prompt {
        Prompt { visit: (next / rows) as u32, ..prompt(next % rows) }
    }
}

impl PromptSource for Epochs {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        if self.next == self.rows * self.epochs {
            return Ok(None);
        }
        self.next += 1;
        Ok(Some(Self::visit(self.next - 1, self.rows)))
    }

    fn position(&self) -> Option<Position> {
        Some(Position { epoch: 0, offset: self.next })
    }
}

fn model(length: LengthConfig, pass_sharpness: f64) -> Arc<Workload> {
    let length = LengthConfig { min: 3, max: 400, ..length };
    Arc::new(Workload::new(WorkloadConfig { length, pass_sharpness, ..WorkloadConfig::default() }))
}

/// A model for which many prompts are solved always or never, and hard prompts need long answers.
fn unequal() -> Arc<Workload> {
    model(LengthConfig { median_easy: 20.0, median_hard: 90.0, ..LengthConfig::default() }, 3.0)
}

/// A model for which all prompts are equal.
fn equal() -> Arc<Workload> {
    let median = 40.0;
    model(
        LengthConfig {
            median_easy: median,
            median_hard: median,
            wrong_factor: 1.0,
            ..LengthConfig::default()
        },
        0.0,
    )
}

fn world(workload: Arc<Workload>) -> World {
    let mut world = World::calm_with(workload, 2, 64);
    world.config = RolloutConfig {
        workers: 2,
        max_concurrent_prompts: 8,
        samples_per_prompt: SAMPLES,
        gen_batch_size: 2 * STEP,
        max_response_length: 400,
        gates: Arc::new(Gates::new(&GatesConfig::from(GroupFilter::default())).unwrap()),
        history: Some(DIFFICULTY),
        ..world.config
    };
    world
}

/// The results of a run.
#[derive(Default)]
struct Outcome {
    tokens: u64,
    groups: Vec<Group>,
    counts: HistoryCounts,
}

impl Outcome {
    fn of_visit(&self, visit: u32) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(move |group| group.prompt.visit == visit)
    }
}

fn run(workload: Arc<Workload>, rows: u64, epochs: u64) -> Outcome {
    run_with(Launch::OnDemand, workload, rows, epochs)
}

fn run_with(launch: Launch, workload: Arc<Workload>, rows: u64, epochs: u64) -> Outcome {
    in_virtual_time(async {
        let mut world = world(workload);
        world.config.launch = launch;
        let feed = PromptFeed::inline(Box::new(Epochs { rows, epochs, next: 0 }));
        let mut manager = world.manager();
        let mut outcome = Outcome::default();
        loop {
            let output = manager.generate(&feed, STEP).await.unwrap();
            let HistoryCounts { skipped, foreseen, expected_valid, valid, prompts } =
                output.metrics.history.unwrap();
            outcome.counts.skipped += skipped;
            outcome.counts.foreseen += foreseen;
            outcome.counts.expected_valid += expected_valid;
            outcome.counts.valid += valid;
            outcome.counts.prompts = prompts;
            let is_last = output.groups.len() < STEP;
            output.groups.iter().for_each(|group| world.check_samples(group));
            outcome.groups.extend(output.groups);
            world.check_between_steps(&manager);
            if is_last {
                break;
            }
        }
        outcome.tokens = world.engine.servers().map(|server| server.stats().generation_tokens_total).sum();
        world.scope.close(Duration::from_secs(1)).await;
        outcome
    })
}

/// The generated tokens for each accepted group, in the first and in the second epoch.
fn costs(workload: &Arc<Workload>, rows: u64, two: &Outcome) -> [f64; 2] {
    let one = run(Arc::clone(workload), rows, 1);
    let second = two.of_visit(1).count() as f64;
    [one.tokens as f64 / one.groups.len() as f64, (two.tokens - one.tokens) as f64 / second]
}

fn mean_length<'a>(groups: impl Iterator<Item = &'a Group>) -> f64 {
    let (mut tokens, mut samples) = (0.0, 0.0);
    for group in groups {
        let weight = f64::from(group.importance_weight().unwrap());
        tokens += weight * group.tokens() as f64;
        samples += weight * group.samples.len() as f64;
    }
    tokens / samples
}

#[test]
fn prompts_of_unequal_difficulty_cost_fewer_tokens_with_a_history() {
    let (workload, rows) = (unequal(), 1500);
    let two = run(Arc::clone(&workload), rows, 2);
    let [without, with] = costs(&workload, rows, &two);
    assert!(with < 0.8 * without, "{with} tokens with history, {without} without");
    // Every valid group of the second epoch that was sent out is accepted, so only the weights can correct
    // for the choice. The first epoch has all valid groups of these prompts. The bound of 10 % is five
    // standard errors.
    let [first, second] = [0, 1].map(|visit| mean_length(two.of_visit(visit)));
    assert!((second / first - 1.0).abs() < 0.1, "{second} and {first}");
    let counts = two.counts;
    assert_eq!(counts.prompts, rows);
    assert_eq!(counts.skipped + counts.foreseen, rows, "{counts:?}");
    let error = (counts.expected_valid - counts.valid as f64) / counts.foreseen as f64;
    assert!(error.abs() < 0.06, "{counts:?}");
}

#[test]
fn equal_prompts_gain_nothing_and_have_nearly_equal_weights() {
    let (workload, rows) = (equal(), 600);
    let two = run(Arc::clone(&workload), rows, 2);
    let [without, with] = costs(&workload, rows, &two);
    assert!((with / without - 1.0).abs() < 0.1, "{with} tokens with history, {without} without");
    let [first, second] = [0, 1].map(|visit| mean_length(two.of_visit(visit)));
    assert!((second / first - 1.0).abs() < 0.05, "{second} and {first}");
    assert!(two.of_visit(0).all(|group| group.importance_weight() == Some(1.0)));
}

#[test]
fn batches_of_later_epochs_have_no_spare_prompts() {
    let rows = 600;
    let [one, two] = [1, 2].map(|epochs| run_with(Launch::Batch, equal(), rows, epochs));
    let without = one.tokens as f64 / one.groups.len() as f64;
    let with = (two.tokens - one.tokens) as f64 / two.of_visit(1).count() as f64;
    assert!(with < 0.9 * without, "{with} tokens with history, {without} without");
    let on_demand = run(equal(), rows, 1);
    let on_demand = on_demand.tokens as f64 / on_demand.groups.len() as f64;
    assert!((with / on_demand - 1.0).abs() < 0.1, "{with} tokens with history, {on_demand} on demand");
}

/// What a run leaves: the number, prompt and weight of each accepted group, and the ledger's history.
#[derive(Debug, Default, PartialEq)]
struct Left {
    accepted: BTreeMap<u64, (u64, u32)>,
    history: rolldock::dispatch::history::PromptHistory,
}

/// One process of a run: it collects steps until the data ends, or until it is killed at `killed_at`.
struct Life<'a> {
    dir: &'a Path,
    number: u32,
    killed_at: Option<Duration>,
}

/// The number of rows: several times the number of groups in flight.
const ROWS: u64 = 400;
const EPOCHS: u64 = 3;

impl Life<'_> {
    /// Opens the ledger and the rollout that continues from it.
    fn begin(&self, world: &World, queue: &[QueueRecord]) -> (AgentLoopManager, PromptFeed) {
        let config = LedgerConfig { fsync: false, inline: true, full_disk_wait: Duration::ZERO };
        let mut opened = LedgerWriter::open(self.dir, config).unwrap();
        let (mut restored, mut next) = (None, 0);
        if opened.state.run().is_some() {
            let resumption = opened.state.reconcile(queue).unwrap();
            for record in &resumption.records {
                opened.writer.append(record.clone());
            }
            next = resumption.position.map_or(0, |position| position.offset);
            let visit = |row, visit| Prompt { visit, ..prompt(row) };
            let queued = resumption.queued.iter();
            let queued =
                queued.map(|queued| (queued.clone(), visit(queued.row, queued.visit), None)).collect();
            restored = Some(Restored { queued, resumption });
        } else {
            let run_id = "history".to_owned();
            opened.writer.append(Record::Run(RunRecord { run_id, started_s: 0, format: FORMAT }));
        }
        opened.writer.append(Record::Life(LifeRecord { number: self.number, pid: 1, started_s: 0 }));
        let mut manager = world.manager();
        manager.keep_journal(opened.writer, restored);
        (manager, PromptFeed::inline(Box::new(Epochs { rows: ROWS, epochs: EPOCHS, next })))
    }

    /// Runs the process. Returns the bytes of the ledger at the moment of the kill, or `None` if the data ended
    /// first.
    fn run(&self, queue: &mut Vec<QueueRecord>, left: &mut Left) -> Option<Vec<u8>> {
        in_virtual_time(async {
            let world = world(unequal());
            let (mut manager, feed) = self.begin(&world, queue);
            let (sender, mut handed) = mpsc::unbounded_channel();
            let control = manager.control();
            let collecting = async {
                while manager.generate_into(&feed, STEP, sender.clone()).await.unwrap().counts.accepted
                    >= STEP
                {}
            };
            let taking = async {
                while let Some(handed) = handed.recv().await {
                    let Handed::Group(group) = handed else { continue };
                    control.was_put();
                    queue.push(QueueRecord::new(group.dispatch, group.number, group.step, group.prompt.uid));
                    let weight = group.importance_weight().unwrap();
                    left.accepted.insert(group.number, (group.prompt.uid.0, weight.to_bits()));
                }
            };
            let killed_at = self.killed_at.unwrap_or(Duration::from_secs(360_000));
            let ledger = tokio::select! {
                biased;
                () = collecting => None,
                () = taking => None,
                () = tokio::time::sleep(killed_at) => Some(std::fs::read(ledger_file(self.dir)).unwrap()),
            };
            world.scope.close(Duration::from_secs(1)).await;
            ledger
        })
    }
}

/// Runs to the end of the data. The first processes are killed after the times in `kills`.
fn run_in_lives(kills: &[u64]) -> Left {
    let dir = TempDir::new().unwrap();
    let (mut queue, mut left) = (Vec::new(), Left::default());
    let killed_at = kills.iter().map(|ms| Some(Duration::from_millis(*ms))).chain([None]);
    for (number, killed_at) in (1..).zip(killed_at) {
        let life = Life { dir: dir.path(), number, killed_at };
        let Some(ledger) = life.run(&mut queue, &mut left) else { break };
        // Records that were written after the moment of the kill are discarded.
        std::fs::write(ledger_file(dir.path()), ledger).unwrap();
    }
    left.history = LedgerState::read(dir.path()).unwrap().0.history().clone();
    left
}

#[test]
fn a_run_that_is_killed_continues_with_the_same_history_choices_and_weights() {
    let whole = run_in_lives(&[]);
    assert!(
        whole.accepted.values().any(|(_, weight)| *weight != 1_f32.to_bits()),
        "some prompts were chosen"
    );
    assert_eq!(whole.history.prompts() as u64, ROWS);
    for kills in [&[1_500][..], &[7_000], &[300, 4_000, 2_500, 6_000, 900]] {
        let killed = run_in_lives(kills);
        assert_eq!(killed.accepted, whole.accepted, "kills={kills:?}");
        assert_eq!(killed.history, whole.history, "kills={kills:?}");
    }
}

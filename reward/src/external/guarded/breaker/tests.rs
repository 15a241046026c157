#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tokio::time::advance;

use super::*;

const CONFIG: BreakerConfig = BreakerConfig {
    failures_max: 3,
    backoff_initial: Duration::from_secs(1),
    backoff_max: Duration::from_secs(4),
    deadline: Duration::from_secs(20),
};

fn refused() -> RewardError {
    RewardError::Unreachable { what: "test".into(), reason: "connection refused".into() }
}

fn state(breaker: &Breaker) -> RewardState {
    breaker.health().borrow().state.clone()
}

/// Reports failures until the reward is suspected, and returns the number of the suspicion.
fn suspected(breaker: &Breaker) -> u64 {
    let mut of_job = Failures::default();
    (0..CONFIG.failures_max).find_map(|_| breaker.failed(&mut of_job)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn only_failures_in_a_row_raise_a_suspicion() {
    let breaker = Breaker::new(CONFIG);
    let mut of_job = Failures::default();
    for _ in 0..10 {
        assert_eq!((breaker.failed(&mut of_job), breaker.failed(&mut of_job)), (None, None));
        assert_eq!(breaker.answered(), None);
    }
    assert_eq!(state(&breaker), RewardState::Answering);
    let suspicion = suspected(&breaker);
    assert_eq!(state(&breaker), RewardState::Suspected);
    assert_eq!(breaker.failed(&mut of_job), None, "only one probe runs at a time");
    assert_eq!(breaker.answered(), None, "a suspicion alone is no outage");
    assert_eq!(state(&breaker), RewardState::Answering);
    assert_eq!(
        breaker.probe_failed(suspicion, &refused(), None),
        AfterProbe::Answered,
        "the reward has answered in the meantime"
    );
    assert_eq!(*breaker.health().borrow(), RewardHealth::default());
}

#[tokio::test(start_paused = true)]
async fn probes_come_with_doubling_pauses_until_the_deadline() {
    let breaker = Breaker::new(CONFIG);
    let suspicion = suspected(&breaker);
    let began = Instant::now();
    let mut pauses = Vec::new();
    loop {
        match breaker.probe_failed(suspicion, &refused(), None) {
            AfterProbe::Again { at, is_first } => {
                assert_eq!(is_first, pauses.is_empty());
                assert_eq!(state(&breaker), RewardState::Out);
                pauses.push((at - Instant::now()).as_secs());
                advance(at - Instant::now()).await;
                assert!(breaker.begin_probe(suspicion));
            }
            AfterProbe::GivenUp => break,
            AfterProbe::Answered => panic!("the reward has answered"),
        }
    }
    assert_eq!(pauses, [1, 2, 4, 4, 4, 4, 1], "the last pause ends at the deadline");
    assert_eq!(began.elapsed(), CONFIG.deadline);
    let RewardState::GivenUp(error) = state(&breaker) else { panic!("the reward is not given up") };
    let words = error.to_string();
    assert!(words.contains("outage_deadline_s=20") && words.contains("connection refused"), "{words}");
    assert_eq!(breaker.answered(), None, "a reward that was given up stays given up");
    assert_eq!(breaker.ready().await, Err(error));
    let health = breaker.health().borrow().clone();
    assert_eq!((health.outages, health.out), (1, CONFIG.deadline));
}

#[tokio::test(start_paused = true)]
async fn the_pause_before_a_probe_is_at_least_the_pause_that_the_reward_asks_for() {
    let breaker = Breaker::new(CONFIG);
    let suspicion = suspected(&breaker);
    let pause = |asked_s: u64| {
        let asked = Some(Duration::from_secs(asked_s));
        let AfterProbe::Again { at, .. } = breaker.probe_failed(suspicion, &refused(), asked) else {
            panic!("the outage is over")
        };
        assert!(breaker.begin_probe(suspicion));
        (at - Instant::now()).as_secs()
    };
    assert_eq!((pause(0), pause(9), pause(1000)), (1, 9, 20), "the deadline ends the longest pause");
}

#[tokio::test(start_paused = true)]
async fn any_answer_ends_an_outage() {
    let breaker = Breaker::new(CONFIG);
    let suspicion = suspected(&breaker);
    breaker.probe_failed(suspicion, &refused(), None);
    advance(Duration::from_secs(7)).await;
    assert_eq!(breaker.answered(), Some(Duration::from_secs(7)));
    assert!(!breaker.begin_probe(suspicion), "the answer has ended the probes");
    assert_eq!(breaker.ready().await, Ok(()));
    let health = breaker.health().borrow().clone();
    assert_eq!((health.state, health.outages, health.out.as_secs()), (RewardState::Answering, 1, 7));
    let next = suspected(&breaker);
    assert_ne!(next, suspicion);
    assert_eq!(
        breaker.probe_failed(suspicion, &refused(), None),
        AfterProbe::Answered,
        "the suspicion is an older one"
    );
    assert!(matches!(breaker.probe_failed(next, &refused(), None), AfterProbe::Again { is_first: true, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_job_is_blamed_only_while_the_reward_answers_others() {
    let breaker = Breaker::new(BreakerConfig { failures_max: 100, ..CONFIG });
    let mut of_job = Failures::default();
    breaker.answered();
    breaker.failed(&mut of_job);
    breaker.answered();
    assert!(!breaker.blames_job(&mut of_job), "the job has failed only once");
    breaker.failed(&mut of_job);
    assert!(breaker.blames_job(&mut of_job));
    let mut alone = Failures::default();
    for _ in 0..10 {
        assert_eq!(breaker.failed(&mut alone), None);
    }
    assert!(!breaker.blames_job(&mut alone), "the reward has answered no job since the first failure");
}

/// Begins an outage and ends it.
fn outage(breaker: &Breaker) {
    let suspicion = suspected(breaker);
    assert!(matches!(breaker.probe_failed(suspicion, &refused(), None), AfterProbe::Again { .. }));
    assert!(breaker.answered().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_outage_excuses_the_failures_before_and_during_it() {
    let breaker = Breaker::new(CONFIG);
    let mut of_job = Failures::default();
    breaker.failed(&mut of_job);
    breaker.failed(&mut of_job);
    let suspicion = suspected(&breaker);
    breaker.probe_failed(suspicion, &refused(), None);
    breaker.failed(&mut of_job);
    breaker.failed(&mut of_job);
    assert_eq!(of_job.answers_before, None, "a failure in the outage, such as a deadline, is excused");
    breaker.answered();
    assert!(!breaker.blames_job(&mut of_job));
    breaker.failed(&mut of_job);
    breaker.answered();
    assert!(!breaker.blames_job(&mut of_job), "the job has failed only once since the outage");
    breaker.failed(&mut of_job);
    assert!(breaker.blames_job(&mut of_job));
}

#[tokio::test(start_paused = true)]
async fn a_job_is_not_at_fault_until_it_fails_after_an_answer() {
    let breaker = Breaker::new(CONFIG);
    let mut of_job = Failures::default();
    while breaker.failed(&mut of_job).is_none() {}
    breaker.answered();
    assert!(!breaker.blames_job(&mut of_job), "the probe was answered, and the job was not tried after that");
    breaker.failed(&mut of_job);
    assert!(breaker.blames_job(&mut of_job));
}

#[tokio::test(start_paused = true)]
async fn at_most_excuses_max_outages_excuse_a_job() {
    let breaker = Breaker::new(CONFIG);
    for _ in 0..5 {
        outage(&breaker);
    }
    let mut of_job = Failures::default();
    for number in 0..EXCUSES_MAX {
        breaker.failed(&mut of_job);
        outage(&breaker);
        breaker.failed(&mut of_job);
        assert!(!breaker.blames_job(&mut of_job), "outage {number} excuses the failure before it");
    }
    outage(&breaker);
    breaker.failed(&mut of_job);
    assert!(breaker.blames_job(&mut of_job), "only EXCUSES_MAX outages excuse a job");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_raises_a_suspicion_and_is_no_failure_of_its_job() {
    let breaker = Breaker::new(CONFIG);
    let mut of_job = Failures::default();
    assert_eq!((breaker.refused(), breaker.failed(&mut of_job)), (None, None));
    assert_eq!(breaker.refused(), Some(1));
    breaker.answered();
    breaker.refused();
    assert!(!breaker.blames_job(&mut of_job), "the job has failed only once");
}

/// Random numbers that are the same in every test run.
struct TestRng(ChaCha8Rng);

impl TestRng {
    fn below(&mut self, end: u32) -> u32 {
        self.0.next_u32() % end
    }

    fn one_in(&mut self, cases: u32) -> bool {
        self.below(cases) == 0
    }
}

/// The state of a job in a random sequence.
#[derive(Clone, Copy, PartialEq)]
enum JobState {
    /// The job waits until the reward is neither suspected nor out.
    Waiting,
    Asked,
    Ended,
}

struct Job {
    failures: Failures,
    /// The probability, in eighths, that an attempt that is not refused fails.
    failing: u32,
    failed_attempts: u32,
    /// Number of attempts until the next check whether the job is at fault.
    left: u32,
    was_refused: bool,
    state: JobState,
}

/// Jobs that fail always, sometimes or never, in any order of events. Some probes fail, so any suspicion may
/// become an outage. Each outage ends with an answer.
struct Sequence {
    chance: TestRng,
    breaker: Breaker,
    retries: u32,
    failed_attempts_max: u32,
    jobs: Vec<Job>,
    suspicion: Option<u64>,
    /// The probability, in eighths, that a probe fails if `is_always_out` does not make it fail.
    probes_failing: u32,
    /// Whether the first probe of each suspicion fails.
    is_always_out: bool,
}

impl Sequence {
    fn new(seed: u64) -> Self {
        let mut chance = TestRng(ChaCha8Rng::seed_from_u64(seed));
        let (failures_max, retries) = (1 + chance.below(8), chance.below(3));
        let jobs = (0..=chance.below(12)).map(|_| Job {
            failures: Failures::default(),
            failing: [0, 1, 4, 8, 8][chance.below(5) as usize],
            failed_attempts: 0,
            left: retries + 1,
            was_refused: false,
            state: JobState::Waiting,
        });
        let jobs = jobs.collect();
        Self {
            breaker: Breaker::new(BreakerConfig { failures_max, ..CONFIG }),
            retries,
            // Between two excuses, a job fails at most `failures_max` times until the reward is suspected, once in
            // an attempt that was already running, in one round (`retries + 1` attempts), and once in the outage.
            // The bound has a margin of 1.
            failed_attempts_max: (EXCUSES_MAX + 1) * (failures_max + retries + 4),
            jobs,
            suspicion: None,
            probes_failing: [0, 2, 6][chance.below(3) as usize],
            is_always_out: chance.one_in(3),
            chance,
        }
    }

    fn probe(&mut self, suspicion: u64) {
        let is_first = state(&self.breaker) == RewardState::Suspected;
        let fails = (is_first && self.is_always_out) || self.chance.below(8) < self.probes_failing;
        if !fails {
            self.breaker.answered();
            self.suspicion = None;
        } else if self.breaker.probe_failed(suspicion, &refused(), None) == AfterProbe::Answered {
            self.suspicion = None;
        } else {
            assert!(self.breaker.begin_probe(suspicion));
        }
    }

    fn step(&mut self, at: usize) {
        let Self { chance, breaker, jobs, .. } = self;
        let job = &mut jobs[at];
        match job.state {
            JobState::Waiting if state(breaker) == RewardState::Answering => {
                job.state = JobState::Asked;
                if job.left == 0 || job.was_refused {
                    let is_over = !job.was_refused && breaker.blames_job(&mut job.failures);
                    (job.left, job.was_refused) = (self.retries + 1, false);
                    job.state = if is_over { JobState::Ended } else { JobState::Waiting };
                }
            }
            JobState::Asked if chance.one_in(8) => {
                self.suspicion = breaker.refused().or(self.suspicion);
                (job.was_refused, job.state) = (true, JobState::Waiting);
            }
            JobState::Asked if chance.below(8) < job.failing => {
                self.suspicion = breaker.failed(&mut job.failures).or(self.suspicion);
                job.failed_attempts += 1;
                job.left -= 1;
                job.state = JobState::Waiting;
            }
            JobState::Asked => {
                breaker.answered();
                job.state = JobState::Ended;
            }
            JobState::Waiting | JobState::Ended => {}
        }
    }

    /// Returns the number of failed attempts of each job.
    fn run(mut self) -> Result<Vec<u32>, String> {
        for _ in 0..200_000 {
            if let Some(job) = self.jobs.iter().find(|job| job.failed_attempts > self.failed_attempts_max) {
                let (max, found) = (self.failed_attempts_max, job.failed_attempts);
                return Err(format!("expected at most {max} failed attempts, found {found}"));
            }
            if self.jobs.iter().all(|job| job.state == JobState::Ended) {
                return Ok(self.jobs.iter().map(|job| job.failed_attempts).collect());
            }
            match self.suspicion {
                Some(suspicion) if self.chance.one_in(4) => self.probe(suspicion),
                _ => {
                    let at = self.chance.below(self.jobs.len() as u32) as usize;
                    self.step(at);
                }
            }
        }
        Err("the sequence has not ended after 200000 steps".to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn every_job_of_any_sequence_ends_after_a_bounded_number_of_failed_attempts() {
    let mut attempts = Vec::new();
    for seed in 0..400 {
        let ended = Sequence::new(seed).run();
        attempts.extend(ended.unwrap_or_else(|error| panic!("seed={seed}: {error}")));
    }
    assert!(
        attempts.iter().max() > Some(&8),
        "expected a job with more than 8 failed attempts: {attempts:?}"
    );
}

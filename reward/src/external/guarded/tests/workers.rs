//! Jobs that kill their workers, on a paused clock. The workers are scripted. Their pool has the pauses and
//! refusals of a real pool.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;
use crate::external::processes::{Death, Health, Start};
use crate::external::{RewardHealth, answers};

/// The virtual time of an answer or a death.
const TAKES: Duration = Duration::from_millis(10);
/// Maximum number of workers for one attempt.
const WORKERS_PER_ATTEMPT: usize = 2;
/// The virtual time that no set of jobs may exceed.
const LIMIT: Duration = Duration::from_secs(3600);

/// A pool whose workers die of responses that begin with "bad". While the function cannot work, they die of
/// every response.
struct Workers {
    began: Instant,
    slots: Semaphore,
    health: Mutex<Health>,
    /// Periods in which every worker dies: their first and last seconds.
    away: Vec<(u64, u64)>,
    /// The deaths by response.
    deaths: Mutex<BTreeMap<String, usize>>,
}

impl Workers {
    fn new(workers: usize, away: Vec<(u64, u64)>) -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            slots: Semaphore::new(workers),
            health: Mutex::new(Health::new("test".into(), workers)),
            away,
            deaths: Mutex::default(),
        })
    }

    async fn ask(&self, job: &RewardJob, start: Start) -> Result<Score, RewardError> {
        let _slot = self.slots.acquire().await.unwrap();
        let died =
            || RewardError::WorkerDied { what: "test".into(), how: "exit".into(), stderr: String::new() };
        for number in 0..WORKERS_PER_ATTEMPT {
            let may_start = self.health.lock().may_start(start);
            match may_start {
                Ok(Some(at)) => sleep_until(at).await,
                Ok(None) => {}
                Err(_) if number > 0 => return Err(died()),
                Err(refusal) => return Err(refusal),
            }
            sleep(TAKES).await;
            let now = self.began.elapsed().as_secs();
            let is_away = self.away.iter().any(|(from, until)| (*from..*until).contains(&now));
            if !is_away && !job.response.starts_with("bad") {
                self.health.lock().answered();
                return Ok(Score::right_or_wrong(true, None));
            }
            *self.deaths.lock().entry(job.response.to_string()).or_default() += 1;
            self.health.lock().died(&Death { how: "exit".into(), stderr: String::new() });
        }
        Err(died())
    }

    /// The largest number of workers that died of the same response.
    fn deaths_max(&self) -> usize {
        self.deaths.lock().values().copied().max().unwrap_or_default()
    }
}

impl RewardRunner for Workers {
    fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        Box::pin(self.ask(job, Start::Paced))
    }

    fn probe<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<(), RewardError>> {
        Box::pin(async move { answers(self.ask(job, Start::AtOnce).await) })
    }
}

fn settings(concurrency: usize, retries: u32) -> Guard {
    let breaker = BreakerConfig {
        failures_max: 8,
        backoff_initial: Duration::from_secs(1),
        backoff_max: Duration::from_secs(60),
        deadline: LIMIT,
    };
    Guard { concurrency, retries, attempt: Duration::from_secs(20), breaker: Some(breaker), ..guard() }
}

/// Probes the reward as a run does at its start, asks about each response after its delay, and returns the
/// results and the health.
async fn graded(
    workers: &Arc<Workers>,
    settings: Guard,
    responses: &[(Duration, String)],
) -> (Vec<Result<f64, RewardError>>, RewardHealth) {
    let runner: Arc<dyn RewardRunner> = Arc::clone(workers) as _;
    let runner = Guarded::new(runner, settings, TaskTracker::new(), CancellationToken::new());
    runner.probe(&job("probe")).await.unwrap();
    let asked = &runner;
    let asking = responses.iter().map(|(delay, response)| async move {
        sleep(*delay).await;
        score_of(asked, response).await
    });
    let results = timeout(LIMIT, join_all(asking)).await.unwrap();
    let health = runner.health().unwrap().borrow().clone();
    (results, health)
}

/// Checks that good responses are scored, and that bad ones fail because their workers died.
fn check(responses: &[(Duration, String)], results: &[Result<f64, RewardError>], of_what: &str) {
    for ((_, response), result) in responses.iter().zip(results) {
        let is_right = match response.starts_with("bad") {
            true => matches!(result, Err(RewardError::WorkerDied { .. })),
            false => *result == Ok(1.0),
        };
        assert!(is_right, "{of_what}: {response}: {result:?}");
    }
}

/// The maximum number of workers that a job kills. Each attempt kills two. Without an outage, a job fails
/// until the reward is suspected, and then at most once for each attempt that is already running or left in
/// its round.
fn deaths_bound(retries: u32) -> usize {
    WORKERS_PER_ATTEMPT * (8 + 4 + retries as usize)
}

fn at_once(responses: impl IntoIterator<Item = String>) -> Vec<(Duration, String)> {
    responses.into_iter().map(|response| (Duration::ZERO, response)).collect()
}

#[tokio::test(start_paused = true)]
async fn jobs_that_kill_their_workers_end_without_an_outage() {
    for (bad, good) in [(1, 0), (2, 0), (9, 0), (60, 0), (1, 1), (9, 40), (60, 40)] {
        for (workers, retries) in [(1, 0), (4, 0), (4, 2)] {
            let named = (0..bad).map(|number| format!("bad {number}"));
            let mut responses = at_once(named.chain((0..good).map(|number| format!("good {number}"))));
            // Good and bad jobs take turns.
            responses.sort_by_key(|(_, response)| response.rsplit(' ').next().map(str::to_owned));
            let pool = Workers::new(workers, Vec::new());
            let (results, health) = graded(&pool, settings(workers, retries), &responses).await;
            let of_what = format!("bad={bad} good={good} workers={workers} retries={retries}");
            check(&responses, &results, &of_what);
            assert_eq!(health.outages, 0, "{of_what}");
            assert!(pool.deaths_max() <= deaths_bound(retries), "{of_what}: {} deaths", pool.deaths_max());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_in_which_every_worker_dies_loses_nothing() {
    for with_bad in [false, true] {
        let response = |number: u64| match with_bad && number.is_multiple_of(5) {
            true => format!("bad {number}"),
            false => format!("good {number}"),
        };
        let responses: Vec<_> =
            (0..100).map(|number| (Duration::from_millis(number * 100), response(number))).collect();
        let pool = Workers::new(4, vec![(5, 600)]);
        let (results, health) = graded(&pool, settings(4, 2), &responses).await;
        check(&responses, &results, &format!("with_bad={with_bad}"));
        assert_eq!(health.outages, 1);
        assert!((585..670).contains(&health.out.as_secs()), "{:?}", health.out);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_brings_the_reward_down_ends_after_a_few_outages() {
    /// A server that dies of the response "bad", and is started again half a minute later.
    struct Server(Mutex<Option<Instant>>);
    impl RewardRunner for Server {
        fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
            Box::pin(async move {
                sleep(TAKES).await;
                let mut died_at = self.0.lock();
                if died_at.is_none_or(|at| at.elapsed() >= Duration::from_secs(30)) {
                    *died_at = (&*job.response == "bad").then(Instant::now);
                }
                match *died_at {
                    Some(_) => {
                        Err(RewardError::Unreachable { what: "test".into(), reason: "refused".into() })
                    }
                    None => Ok(Score::right_or_wrong(true, None)),
                }
            })
        }
    }
    for retries in [0, 2] {
        let server = Arc::new(Server(Mutex::default()));
        let runner = Guarded::new(server, settings(8, retries), TaskTracker::new(), CancellationToken::new());
        let mut responses = different(30);
        responses.insert(3, "bad".to_owned());
        let results = timeout(LIMIT, all(&runner, &responses)).await.unwrap();
        let failed: Vec<&str> = responses
            .iter()
            .zip(&results)
            .filter(|(_, result)| result.is_err())
            .map(|(bad, _)| &**bad)
            .collect();
        assert_eq!(failed, ["bad"], "{results:?}");
        let outages = runner.health().unwrap().borrow().outages;
        assert!((2..=6).contains(&outages), "{outages}");
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_of_any_kind_in_any_order_end_after_a_bounded_number_of_attempts() {
    for seed in 0..60 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut below = |end: u64| u64::from(random.next_u32()) % end;
        let (workers, retries) = (1 + below(4) as usize, below(3) as u32);
        let away: Vec<(u64, u64)> =
            (0..below(3)).map(|number| (300 * number + 5, 300 * number + 6 + below(90))).collect();
        let (jobs, bad_of_8) = (1 + below(40), below(9));
        let responses: Vec<_> = (0..jobs)
            .map(|number| {
                let kind = if below(8) < bad_of_8 { "bad" } else { "good" };
                (Duration::from_millis(below(400_000)), format!("{kind} {number}"))
            })
            .collect();
        let outages_max = away.len();
        let pool = Workers::new(workers, away);
        let (results, health) = graded(&pool, settings(workers, retries), &responses).await;
        let of_what = format!("seed={seed} workers={workers} retries={retries} outages={outages_max}");
        check(&responses, &results, &of_what);
        assert!(health.outages <= outages_max as u64, "{of_what}: {} outages", health.outages);
        let bound = deaths_bound(retries) * (outages_max + 1);
        assert!(pool.deaths_max() <= bound, "{of_what}: {} deaths", pool.deaths_max());
    }
}

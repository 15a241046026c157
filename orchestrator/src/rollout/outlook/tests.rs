use rolldock_reward::{GateConfig, GateRule, GatesConfig, GroupFilter};

use super::*;

const SAMPLES: u32 = 16;

fn published() -> Gates {
    Gates::new(&GatesConfig::from(GroupFilter::default())).unwrap()
}

fn add(outlook: &mut Outlook, gates: &Gates, accs: &[f32]) -> Standing {
    let mut standing = outlook.enter(gates, std::iter::empty());
    for acc in accs {
        outlook.finish(gates, &mut standing, *acc, *acc);
    }
    standing
}

/// A generator of numbers in [0, 1): splitmix64.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((word ^ (word >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The accuracies of a group whose prompt is easy, medium or hard with equal shares.
    fn group(&mut self) -> Vec<f32> {
        let chance = [0.02, 0.5, 0.98][(self.next() * 3.0) as usize];
        (0..SAMPLES).map(|_| f32::from(u8::from(self.next() < chance))).collect()
    }
}

#[test]
fn quantiles_are_those_of_the_normal_distribution() {
    for (probability, quantile) in [
        (0.5, 0.0),
        (0.841_345, 1.0),
        (0.9, 1.281_552),
        (0.95, 1.644_854),
        (0.99, 2.326_348),
        (0.999, 3.090_232),
    ] {
        let found = normal_quantile(probability);
        assert!((found - quantile).abs() < 0.000_5, "{probability}: {found}");
    }
}

#[test]
fn proven_groups_count_one_and_alike_groups_less_and_less() {
    let gates = published();
    let mut outlook = Outlook::new(SAMPLES, 0.5, &gates);
    for _ in 0..3 {
        add(&mut outlook, &gates, &[1.0, 0.0]);
    }
    assert_eq!(outlook.counts(), (3, 0, 0));
    assert!(outlook.reaches(3, 0) && !outlook.reaches(4, 0));
    let chances = outlook.chances(1);
    assert!(chances.windows(2).all(|pair| pair[0] > pair[1]), "{chances:?}");
    assert_eq!(chances.last(), Some(&0.0), "all samples are alike");
    let useless = add(&mut outlook, &gates, &[1.0; SAMPLES as usize]);
    assert!(!outlook.reaches(4, 0), "it counts 0");
    outlook.leave(&useless);
    assert_eq!(outlook.counts(), (3, 0, 0));
}

#[test]
fn without_a_filter_every_group_counts_one() {
    let gates = Gates::default();
    let mut outlook = Outlook::new(SAMPLES, 0.99, &gates);
    for _ in 0..5 {
        outlook.enter(&gates, std::iter::empty());
    }
    assert!(outlook.reaches(5, 0) && !outlook.reaches(6, 0));
    assert_eq!((outlook.at_most(0), outlook.at_most(2)), (5, 7));
}

#[test]
fn chances_become_those_of_the_prompts() {
    let gates = published();
    let mut outlook = Outlook::new(SAMPLES, 0.9, &gates);
    let mut draws = Draws(7);
    // The true chance is measured on separate groups: it is the share of valid groups among those that begin
    // alike.
    let mut began = [[(0_u32, 0_u32); 3]; 2];
    const AFTER: [usize; 3] = [1, 4, 12];
    for _ in 0..20_000 {
        let group = draws.group();
        let valid = group.iter().any(|acc| *acc != group[0]);
        for (place, after) in AFTER.into_iter().enumerate() {
            if group[..after].iter().all(|acc| *acc == group[0]) {
                let counted = &mut began[usize::from(group[0] == 1.0)][place];
                *counted = (counted.0 + 1, counted.1 + u32::from(valid));
            }
        }
    }
    for _ in 0..3_000 {
        let standing = add(&mut outlook, &gates, &draws.group());
        outlook.leave(&standing);
    }
    for (right, began) in began.iter().enumerate() {
        let chances = outlook.chances(right);
        for (after, (all, valid)) in AFTER.into_iter().zip(began) {
            let truth = f64::from(*valid) / f64::from(*all);
            assert!(
                (chances[after - 1] - truth).abs() < 0.05,
                "{after} {right}: {} {truth}",
                chances[after - 1]
            );
        }
    }
}

/// The groups that are launched at once reach the target in the share of cases that the confidence states.
#[test]
fn the_target_is_reached_as_often_as_the_confidence_says() {
    let gates = published();
    for confidence in [0.5, 0.8, 0.95] {
        let mut draws = Draws(3);
        let mut outlook = Outlook::new(SAMPLES, confidence, &gates);
        for _ in 0..2_000 {
            let standing = add(&mut outlook, &gates, &draws.group());
            outlook.leave(&standing);
        }
        const TARGET: usize = 50;
        let launched = (0..500).find(|groups| outlook.reaches(TARGET, *groups)).unwrap();
        let mut reached = 0;
        for _ in 0..2_000 {
            let groups = (0..launched).map(|_| draws.group());
            let valid = groups.filter(|group| group.iter().any(|acc| *acc != group[0])).count();
            reached += u32::from(valid >= TARGET);
        }
        let share = f64::from(reached) / 2_000.0;
        assert!(
            (confidence - 0.05..confidence + 0.09).contains(&share),
            "{confidence}: {share}, {launched} groups"
        );
    }
}

/// There are more valid groups than [`Outlook::at_most`] says in about one case of 1,000.
#[test]
fn there_are_hardly_ever_more_valid_groups_than_expected_at_most() {
    let gates = published();
    let mut draws = Draws(11);
    let mut outlook = Outlook::new(SAMPLES, 0.9, &gates);
    for _ in 0..1_000 {
        let standing = add(&mut outlook, &gates, &draws.group());
        outlook.leave(&standing);
    }
    // Each group has finished some of its samples.
    let (mut above, mut expected, mut valid_sum) = (0, 0, 0);
    for _ in 0..2_000 {
        let groups: Vec<Vec<f32>> = (0..60).map(|_| draws.group()).collect();
        let finished = |(number, group): (usize, &Vec<f32>)| add(&mut outlook, &gates, &group[..number % 4]);
        let standings: Vec<Standing> = groups.iter().enumerate().map(finished).collect();
        let at_most = outlook.at_most(0);
        standings.iter().for_each(|standing| outlook.leave(standing));
        let valid = groups.iter().filter(|group| group.iter().any(|acc| *acc != group[0])).count();
        above += u32::from(valid > at_most);
        expected += at_most;
        valid_sum += valid;
    }
    assert!(above <= 12, "{above} of 2,000 cases");
    // The bound is of use only if it is not the number of all groups. Here 55 % of the groups are valid.
    let (expected, valid) = (expected as f64 / 2_000.0, valid_sum as f64 / 2_000.0);
    assert!(expected < 50.0 && expected > valid, "at most {expected} of 60 groups, {valid} are valid");
}

#[test]
fn little_evidence_launches_more() {
    let gates = published();
    let launched = |outlook: &Outlook| (0..1_000).find(|groups| outlook.reaches(20, *groups)).unwrap();
    let mut outlook = Outlook::new(SAMPLES, 0.9, &gates);
    let unsure = launched(&outlook);
    for number in 0..200 {
        // The share of valid groups is the same as in the prior.
        let accs = if number % 7 < 2 { vec![1.0; 16] } else { vec![1.0, 0.0] };
        let standing = add(&mut outlook, &gates, &accs);
        outlook.leave(&standing);
    }
    assert!(launched(&outlook) < unsure, "{} and {unsure}", launched(&outlook));
}

#[test]
fn other_gates_count_by_their_share() {
    let mut config = GatesConfig::from(GroupFilter::default());
    let rule = GateRule::Length { mean_tokens_min: Some(5.0), mean_tokens_max: None };
    config.gates.push(GateConfig { name: None, rule });
    let gates = Gates::new(&config).unwrap();
    let mut outlook = Outlook::new(SAMPLES, 0.5, &gates);
    for number in 0..100 {
        let standing = add(&mut outlook, &gates, &[1.0, 0.0]);
        outlook.leave(&standing);
        outlook.judged(&standing, number % 4 == 0);
    }
    for _ in 0..40 {
        add(&mut outlook, &gates, &[0.0, 1.0]);
    }
    assert!(outlook.reaches(10, 0) && !outlook.reaches(12, 0), "a quarter of 40");
}

#[test]
fn evidence_is_restored_from_its_bits() {
    let gates = published();
    let mut outlook = Outlook::new(SAMPLES, 0.9, &gates);
    let mut draws = Draws(5);
    for _ in 0..50 {
        let standing = add(&mut outlook, &gates, &draws.group());
        outlook.leave(&standing);
    }
    outlook.age();
    let bits = outlook.to_bits();
    let mut again = Outlook::new(SAMPLES, 0.9, &gates);
    again.restore(AcceptRate::default(), &bits);
    assert_eq!((again.chances(0), again.chances(1)), (outlook.chances(0), outlook.chances(1)));
    let mut other = Outlook::new(4, 0.9, &gates);
    let before = other.chances(0);
    other.restore(AcceptRate::default(), &bits);
    other.restore(AcceptRate::default(), &[f64::NAN.to_bits(); 18]);
    assert_eq!(other.chances(0), before, "evidence that does not fit is ignored");
}

#[test]
fn the_chance_of_a_group_falls_with_each_alike_sample_while_it_is_open() {
    let gates = published();
    let mut outlook = Outlook::new(SAMPLES, 0.9, &gates);
    let mut draws = Draws(9);
    for _ in 0..500 {
        let standing = add(&mut outlook, &gates, &draws.group());
        outlook.leave(&standing);
    }
    for (right, acc) in [(0, 0.0), (1, 1.0)] {
        let chances = outlook.chances(right);
        let mut standing = outlook.enter(&gates, std::iter::empty());
        assert!(!outlook.is_open(&standing), "no sample has finished");
        for alike in 1..SAMPLES {
            outlook.finish(&gates, &mut standing, acc, acc);
            assert!(outlook.is_open(&standing));
            // The samples of this group are evidence too.
            assert!((outlook.chance_to_differ(&standing) - chances[alike as usize - 1]).abs() < 0.01);
        }
        outlook.finish(&gates, &mut standing, acc, acc);
        assert!(!outlook.is_open(&standing), "all samples have finished");
        outlook.leave(&standing);
    }
    let proven = add(&mut outlook, &gates, &[1.0, 0.0]);
    assert!(!outlook.is_open(&proven));
}

/// Where other gates reject nearly every group, they would reject the group that takes its place too.
#[test]
fn the_chance_of_a_group_leaves_out_the_other_gates() {
    let mut config = GatesConfig::from(GroupFilter::default());
    let rule = GateRule::Length { mean_tokens_min: None, mean_tokens_max: Some(100.0) };
    config.gates.push(GateConfig { name: None, rule });
    let gates = Gates::new(&config).unwrap();
    let mut outlook = Outlook::new(SAMPLES, 0.9, &gates);
    let alike = add(&mut outlook, &gates, &[0.0]);
    let proven = add(&mut outlook, &gates, &[1.0, 0.0]);
    let (before, expected) = (outlook.chance_to_differ(&alike), outlook.valid(0).mean);
    (0..50).for_each(|_| outlook.judged(&proven, false));
    assert_eq!(outlook.chance_to_differ(&alike), before);
    assert!(outlook.valid(0).mean < 0.1 * expected, "the launch counts these gates");
}

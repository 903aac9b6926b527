//! One point of the matrix, and the patterns that leave points out.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::peers;

use super::options::{self, FAULTS, FLOOR, LAUNCHED, LINK, PROGRAM, plain};

/// What is measured, by the names of the file: `command`, `workers`, the options, and what shapes the links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Case(pub BTreeMap<String, Value>);

impl Case {
    fn count(&self, name: &str) -> Option<u32> {
        self.0.get(name)?.as_u64()?.try_into().ok()
    }

    /// How many workers.
    pub fn workers(&self) -> u32 {
        self.count("workers").unwrap_or(1)
    }

    /// How many parameter servers, and whether these live with the first workers.
    pub fn servers(&self) -> (u32, bool) {
        let colocated = self.0.get("colocate").and_then(Value::as_bool);
        (self.count("servers").unwrap_or(0), colocated.unwrap_or(false))
    }

    /// Whether links go over QUIC, which has a congestion control of its own.
    fn is_over_quic(&self) -> bool {
        self.0.get("transport").and_then(Value::as_str) == Some("quic")
    }

    /// Options of the launcher, and their values.
    pub fn launched(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        let of_quic = self.is_over_quic().then_some("congestion");
        LAUNCHED.iter().copied().chain(of_quic).filter_map(|name| Some((name, self.0.get(name)?)))
    }

    /// TCP's congestion control on the hosts, if it is said.
    pub fn congestion(&self) -> Option<&str> {
        self.0.get("congestion").filter(|_| !self.is_over_quic()).and_then(Value::as_str)
    }

    /// How many processes, each on a host of its own.
    pub fn hosts(&self) -> u32 {
        let (servers, colocated) = self.servers();
        self.workers() + if colocated { 0 } else { servers }
    }

    /// The method's name, or what the command takes without one; of another program its own words.
    pub fn method(&self) -> String {
        self.0.get("method").or(self.0.get(PROGRAM)).map_or_else(|| "spardl".to_owned(), plain)
    }

    /// Whether another library is measured.
    pub fn is_of_peer(&self) -> bool {
        !self.runs_program() && peers::is_peer(&self.method())
    }

    /// Whether the floor of a step is measured as well.
    pub fn measures_floor(&self) -> bool {
        !self.runs_program() && self.0.get(FLOOR).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The same with other values of these options.
    pub fn with(&self, values: &BTreeMap<String, Value>) -> Case {
        let mut case = self.clone();
        case.0.extend(values.clone());
        case
    }

    /// All but the method: what the methods of one job have in common.
    pub fn without_method(&self) -> Case {
        let mut rest = self.clone();
        rest.0.remove("method");
        rest
    }

    /// The words of the command line, after `gleaner bench --json` or the like; without what the launcher has, and
    /// without the method. The rate of the links is one of them only where a floor is measured.
    pub fn words(&self) -> Vec<String> {
        const ELSEWHERE: &[&str] =
            &["command", "workers", "servers", "colocate", "method", "topology", "layers", FAULTS, FLOOR];
        let elsewhere = |name: &str| [ELSEWHERE, LAUNCHED, LINK].iter().any(|names| names.contains(&name));
        let options = self.0.iter().filter(|(name, _)| !elsewhere(name));
        let rate = self.0.get_key_value("bandwidth").filter(|_| self.measures_floor());
        options.chain(rate).flat_map(|(name, value)| options::words(name, value)).collect()
    }

    /// Whether it is measured by another program than ours.
    pub fn runs_program(&self) -> bool {
        self.0.contains_key(PROGRAM)
    }

    /// The words of that program: those of the file, in which `{name}` is the case's value of that name, and as options all other values that are
    /// neither the launcher's nor those of the links.
    ///
    /// # Errors
    /// The name of a placeholder for which this case has no value.
    pub fn program(&self) -> Result<Vec<String>, String> {
        const ELSEWHERE: &[&str] =
            &["command", PROGRAM, "workers", "servers", "colocate", "topology", FAULTS];
        let mut used = Vec::new();
        let program = self.0.get(PROGRAM).map(plain).unwrap_or_default();
        let words = shlex::split(&program).unwrap_or_default();
        let words = words.iter().map(|word| self.substituted(word, &mut used));
        let mut words = words.collect::<Result<Vec<String>, String>>()?;
        let is_option = |name: &str| {
            let elsewhere = [ELSEWHERE, LAUNCHED, LINK];
            !elsewhere.iter().any(|names| names.contains(&name)) && used.iter().all(|used| used != name)
        };
        let options = self.0.iter().filter(|(name, _)| is_option(name));
        words.extend(options.flat_map(|(name, value)| options::words(name, value)));
        Ok(words)
    }

    /// A word with values in place of its placeholders, whose names are added to those that are used. Braces around anything else, and behind a `$`,
    /// stay.
    fn substituted(&self, word: &str, used: &mut Vec<String>) -> Result<String, String> {
        let is_name = |name: &&str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        };
        let (mut whole, mut rest) = (String::new(), word);
        while let Some((before, after)) = rest.split_once('{') {
            whole += before;
            let name = after.split_once('}').map(|(name, _)| name).filter(is_name);
            let Some(name) = name.filter(|_| !before.ends_with('$')) else {
                whole.push('{');
                rest = after;
                continue;
            };
            let value = self.0.get(name).filter(|_| !["command", PROGRAM].contains(&name));
            whole += &plain(value.ok_or(name)?);
            used.push(name.to_owned());
            rest = &after[name.len() + 1..];
        }
        Ok(whole + rest)
    }
}

/// Values that a case must have: of each key, one of several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pattern(pub BTreeMap<String, Vec<Value>>);

impl Pattern {
    /// Whether a case has them.
    pub fn fits(&self, case: &Case) -> bool {
        self.0.iter().all(|(key, values)| case.0.get(key).is_some_and(|value| values.contains(value)))
    }
}

/// What varies: its values, each of which sets one option or several, by their names.
pub type AxisValues = Vec<BTreeMap<String, Value>>;

/// An axis of one option.
pub fn axis(name: &str, values: Vec<Value>) -> AxisValues {
    values.into_iter().map(|value| [(name.to_owned(), value)].into()).collect()
}

/// All combinations of the axes' values with the fixed ones. The last axis turns fastest.
pub fn product(fixed: &Case, axes: &[AxisValues]) -> Vec<Case> {
    axes.iter().fold(vec![fixed.clone()], |cases, axis| {
        cases.iter().flat_map(|case| axis.iter().map(|value| case.with(value))).collect()
    })
}

/// Groups that run together: cases that differ in nothing but the method, each group where its first case stands. A peer is alone.
pub fn together(cases: &[Case]) -> Vec<Vec<Case>> {
    let mut groups: Vec<(Case, Vec<Case>)> = Vec::new();
    for case in cases {
        let rest = if case.is_of_peer() { case.clone() } else { case.without_method() };
        match groups.iter_mut().find(|(common, _)| *common == rest) {
            Some((_, group)) => group.push(case.clone()),
            None => groups.push((rest, vec![case.clone()])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The order of a turn: turn 0 begins with the first of `length` jobs, and the others elsewhere, spread over all of them.
/// So no job always follows the same time after the start, and a machine that drifts hits all alike.
pub fn order(length: usize, turn: u32, turns: u32) -> Vec<usize> {
    let apart = (length / turns.max(1) as usize).max(1);
    let mut order: Vec<usize> = (0..length).collect();
    if length > 0 {
        order.rotate_left(turn as usize * apart % length);
    }
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn counted(name: &str, count: usize) -> AxisValues {
        axis(name, (0..count).map(|i| json!(format!("{name}{i}"))).collect())
    }

    #[test]
    fn a_product_has_every_combination_once() {
        for (a, b, c) in [(1, 1, 1), (3, 2, 4), (2, 5, 1), (0, 3, 2)] {
            let axes = [counted("method", a), counted("x", b), counted("y", c)];
            let fixed = Case([("workers".to_owned(), json!(3))].into());
            let cases = product(&fixed, &axes);
            assert_eq!(cases.len(), a * b * c);
            let different: BTreeSet<String> = cases.iter().map(|case| json!(case.0).to_string()).collect();
            assert_eq!(different.len(), cases.len());
            assert!(cases.iter().all(|case| case.workers() == 3));
            // Together: as many groups as the other axes give, all methods in each, in the order of the axis.
            let groups = together(&cases);
            assert_eq!(groups.len(), if a == 0 { 0 } else { b * c });
            for group in groups {
                let methods: Vec<Value> = group.iter().map(|case| case.0["method"].clone()).collect();
                assert!(methods.iter().eq(axes[0].iter().map(|value| &value["method"])));
                assert!(group.iter().all(|case| case.without_method() == group[0].without_method()));
            }
        }
    }

    #[test]
    fn a_turn_has_every_job_once_and_turns_begin_differently() {
        for (length, turns) in [(0, 3), (1, 4), (2, 3), (3, 3), (10, 3), (12, 4)] {
            let mut firsts = BTreeSet::new();
            for turn in 0..turns {
                let order = order(length, turn, turns);
                firsts.extend(order.first().copied());
                assert_eq!(BTreeSet::from_iter(order), BTreeSet::from_iter(0..length));
            }
            assert_eq!(firsts.len(), length.min(turns as usize), "{length} jobs, {turns} turns");
        }
    }

    #[test]
    fn what_shapes_links_is_no_word_of_the_command() {
        let case = |case: Value| Case(serde_json::from_value(case).unwrap());
        let quic = case(json!({ "transport": "quic", "congestion": "bbr" }));
        let case = case(json!({
            "command": "train", "workers": 3, "servers": 1, "bandwidth": "1gbit", "loss": "1%",
            "congestion": "cubic", "transport": "tcp", "sockets": 4, "plain": true, "faults": "cut",
            "lr_drops": "0.5,0.75", "mask_momentum": true, "method": "ring", "seed": 4,
        }));
        assert_eq!((case.servers(), case.hosts(), case.congestion()), ((1, false), 4, Some("cubic")));
        let launched: Vec<_> = case.launched().collect();
        assert_eq!(launched, [("transport", &json!("tcp")), ("sockets", &json!(4)), ("plain", &json!(true))]);
        assert_eq!(case.words(), ["--lr-drops", "0.5,0.75", "--mask-momentum", "--seed", "4"]);
        assert_eq!(quic.congestion(), None);
        assert!(quic.launched().eq([("transport", &json!("quic")), ("congestion", &json!("bbr"))]));
    }

    #[test]
    fn where_a_floor_is_measured_the_command_gets_the_rate_of_the_links() {
        let words = |floor: bool| {
            let case = json!({ "bandwidth": "1gbit", "floor": floor, "params": 10, "workers": 2 });
            Case(serde_json::from_value(case).unwrap()).words()
        };
        assert_eq!(words(true), ["--params", "10", "--bandwidth", "1gbit"]);
        assert_eq!(words(false), ["--params", "10"]);
    }
}

//! Which methods are measured: those that were named, or all that can run.

use gleaner_algorithms::{Method, Rank};

use crate::choice::{self, Choice, Refusal};
use crate::report::CommandError;

#[derive(Clone, Debug)]
pub struct Entrant {
    pub method: Method,
    /// The entries that it delivers; n for dense methods.
    pub k: usize,
}

/// The methods that were chosen, with the options that `set` gives them, and can run among so many workers with n entries; where all were
/// asked for, the others too.
///
/// # Errors
/// A method that was named and cannot run. Where all were asked for, the first one's reason if none of them can.
pub fn enlist(
    choice: &Choice,
    set: impl Fn(Method) -> Method,
    workers: u32,
    n: usize,
) -> Result<(Vec<Entrant>, Vec<Refusal>), CommandError> {
    choice.each(|_, method| {
        let method = set(method);
        let k = choice::k(&method, workers, n)?;
        if method.is_auto() {
            method.candidates(workers, n)?;
        } else {
            method.schedule(Rank(0), workers, n)?;
        }
        Ok(Entrant { method, k })
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        choice: Choice,
    }

    type Lineup = (Vec<Entrant>, Vec<Refusal>);

    fn enlisted(arguments: &str, workers: u32, n: usize) -> Result<Lineup, String> {
        let command = Command::parse_from(["bench"].into_iter().chain(arguments.split(' ')));
        enlist(&command.choice, |method| method, workers, n).map_err(|reason| reason.to_string())
    }

    fn names(entrants: &[Entrant]) -> Vec<&str> {
        entrants.iter().map(|entrant| entrant.method.collective().name()).collect()
    }

    /// So many entries that a method with one block cannot number them, and one with 16 can.
    const LONG: usize = 1 << 33;

    #[test]
    fn every_listed_method_takes_part_or_is_refused_for_a_reason() {
        for (workers, n) in [(1, 0), (1, 100), (6, 100), (7, 3), (16, LONG)] {
            let (entrants, refused) = enlisted("--method all", workers, n).unwrap();
            let mut all = names(&entrants);
            all.extend(refused.iter().map(|refusal| &*refusal.method));
            let mut known: Vec<&str> = Method::all().map(|m| m.collective().name()).collect();
            all.sort_unstable();
            known.sort_unstable();
            assert_eq!(all, known, "{workers} workers, {n} entries");
            for Refusal { method, reason } in &refused {
                assert_eq!(enlisted(&format!("--method {method}"), workers, n).unwrap_err(), *reason);
            }
        }
    }

    #[test]
    fn a_method_that_does_not_fit_is_passed_over_only_where_all_are_asked_for() {
        let (entrants, refused) = enlisted("--method all", 16, LONG).unwrap();
        assert!(names(&entrants).contains(&"ring"));
        assert!(refused.iter().any(|refusal| refusal.method == "recursive-doubling"));
        let error = enlisted("--method ring,recursive-doubling", 16, LONG).unwrap_err();
        assert!(error.contains("recursive-doubling cuts 8589934592 entries"), "{error}");
    }

    #[test]
    fn names_stand_in_the_order_given_and_may_be_repeated() {
        let (entrants, _) = enlisted("--method ring,spardl,ring --k 5", 3, 100).unwrap();
        assert_eq!(names(&entrants), ["ring", "spardl", "ring"]);
        assert_eq!(entrants.iter().map(|entrant| entrant.k).collect::<Vec<_>>(), [100, 5, 100]);
    }

    #[test]
    fn what_fits_no_method_is_an_error_for_all_of_them_too() {
        for (arguments, words) in [
            ("--method all --k 101", "k is 101"),
            ("--method all --density 2", "the density is 2"),
            ("--method ring,,spardl", "no method ''"),
            ("--method ring,all", "no method 'all'"),
        ] {
            let error = enlisted(arguments, 3, 100).unwrap_err();
            assert!(error.contains(words), "{arguments}: {error}");
        }
    }
}

//! What servers keep in a directory, and which of it they go on from.

use std::fs;
use std::path::Path;

use gleaner_algorithms::Method;
use gleaner_runtime::{Layout, Roles};

use crate::job::{self, Over, gradient};
use crate::servers::{SGD, bits, entries, give, initial, layout, options, pass};

/// A state that is not this job's, or not there, is refused by all ranks with one sentence.
#[test]
fn servers_go_on_from_their_own_state_alone() {
    let directory = tempfile::tempdir().unwrap();
    let roles = Roles { servers: 2, ..Roles::default() };
    let run = |len: usize, resumes: bool| {
        job::run_as(Over::Tcp, 4, roles, |session| {
            if session.is_server() {
                return session.serve().map_or_else(|error| error.to_string(), |()| "served".to_owned());
            }
            let layout = Layout::new().parameter("w", len);
            let options = options(Method::ring(), "bsp", SGD);
            let made = session.durable_replica(&layout, &vec![0.5; len], options, directory.path(), resumes);
            made.map_or_else(|error| error.to_string(), |replica| format!("step {}", replica.step_number()))
        })
    };
    assert!(run(10, true).iter().all(|said| said.contains("holds no server's state that is whole")));
    // Whichever server looks first at what lies there, their states belong together.
    for _ in 0..10 {
        assert_eq!(run(10, false), ["step 0", "step 0", "served", "served"]);
    }
    assert_eq!(run(10, true), ["step 0", "step 0", "served", "served"]);
    for said in run(12, true) {
        assert!(said.contains("was written for 2 workers and the layers w: 10"), "{said}");
        assert!(said.contains("this job has 2 workers and the layers w: 12"), "{said}");
    }
}

/// Two workers that take some steps more with this many servers; what each has afterwards, or says.
fn goes_on(
    directory: &Path,
    servers: u32,
    resumes: bool,
    steps: u64,
) -> Vec<Result<(u64, Vec<u32>), String>> {
    let roles = Roles { servers, ..Roles::default() };
    let mut said = job::run_as(Over::Memory, 2 + servers, roles, |session| {
        if session.is_server() {
            return session.serve().map(|()| (0, Vec::new())).map_err(|error| error.to_string());
        }
        let options = options(Method::ring(), "bsp", SGD);
        let made = session.durable_replica(&layout(), &initial(), options, directory, resumes);
        let mut replica = made.map_err(|error| error.to_string())?;
        for step in replica.step_number()..replica.step_number() + steps {
            give(&mut replica, &gradient(entries(), session.rank(), step));
            replica.step(pass()).unwrap();
        }
        Ok((replica.step_number(), bits(replica.parameters())))
    });
    said.truncate(2);
    said
}

#[test]
fn any_number_of_servers_goes_on_from_what_any_other_has_left() {
    let directory = tempfile::tempdir().unwrap();
    let whole = goes_on(tempfile::tempdir().unwrap().path(), 1, false, 12);
    assert_eq!(goes_on(directory.path(), 1, false, 2)[0].as_ref().unwrap().0, 2);
    for (servers, done) in [(3, 4), (2, 6), (2, 8), (1, 10), (3, 12)] {
        let said = goes_on(directory.path(), servers, true, 2);
        assert_eq!(said[0].as_ref().unwrap().0, done);
        if done == 12 {
            assert!(said == whole, "the bits of a job that was not interrupted");
        }
    }
}

#[test]
fn a_set_of_states_that_is_not_whole_is_not_gone_on_from() {
    let directory = tempfile::tempdir().unwrap();
    let file =
        |server: u32, servers: u32| directory.path().join(format!("server-{server}-of-{servers}.state"));
    goes_on(directory.path(), 1, false, 2);
    // Of a cut that was not finished there is one file, and no rank has pushed to it: the set before it has all that there is.
    let cut = goes_on(directory.path(), 2, true, 0);
    fs::remove_file(file(1, 2)).unwrap();
    for servers in [2, 1, 3] {
        assert_eq!(goes_on(directory.path(), servers, true, 0), cut, "{servers} servers");
    }
    goes_on(directory.path(), 2, true, 1);
    fs::remove_file(file(0, 2)).unwrap();
    for servers in [1, 2, 3] {
        for said in goes_on(directory.path(), servers, true, 0) {
            let said = said.unwrap_err();
            assert!(said.contains("server-0-of-2.state is missing"), "{servers} servers: {said}");
        }
    }
}

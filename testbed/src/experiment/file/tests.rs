use std::time::Duration;

use super::*;

const WHOLE: &str = r#"title = "All of it"
description = "Every key."
turns = 2

[network]
hosts = 4

[workload]
command = "bench"
steps = 5
params = 100_000

[matrix]
method = ["spardl", "ring"]
workers = [4, 2]
bandwidth = ["1gbit", "100mbit"]

[[exclude]]
method = "ring"
bandwidth = "100mbit"
workers = [2, 4]

[[chaos]]
step = 3
do = "stop"
rank = 1
for = "1s"
cases = { workers = 4 }

[[chaos]]
at = "2s"
do = "reshape"
host = 0
bandwidth = "10mbit"
"#;

fn parsed(text: &str) -> Experiment {
    checked("test", text, toml::from_str(text).unwrap()).unwrap()
}

/// The line that is refused, and the sentence.
fn refused(text: &str) -> (usize, String) {
    let file = match toml::from_str(text) {
        Ok(file) => file,
        Err(error) => return (0, error.to_string()),
    };
    let (place, problem) = checked("test", text, file).unwrap_err();
    (text[..place.start].matches('\n').count() + 1, problem)
}

/// A file with one part replaced is refused at this line, in a sentence with these words.
#[track_caller]
fn expect_refused(text: &str, (from, to): (&str, &str), (line, words): (usize, &str)) {
    assert!(text.contains(from), "{from}");
    let (found, sentence) = refused(&text.replace(from, to));
    assert!(sentence.contains(words), "{to}: {sentence}");
    assert_eq!(found, line, "{to}: {sentence}");
}

#[test]
fn a_file_says_which_jobs_there_are_and_in_which_order() {
    let experiment = parsed(WHOLE);
    assert_eq!((experiment.turns, experiment.network), (2, Wanted::Uniform(4)));
    assert_eq!(experiment.limit, None);
    let limited = parsed(&WHOLE.replace("turns = 2", "turns = 2\nlimit = '1.5m'"));
    assert_eq!(limited.limit, Some(Duration::from_secs(90)));
    let jobs: Vec<String> = experiment
        .jobs
        .iter()
        .map(|job| {
            let methods: Vec<String> = job.iter().map(Case::method).collect();
            format!("{} {} {}", job[0].workers(), job[0].0["bandwidth"], methods.join("+"))
        })
        .collect();
    assert_eq!(
        jobs,
        [
            "4 \"1gbit\" spardl+ring",
            "4 \"100mbit\" spardl",
            "2 \"1gbit\" spardl+ring",
            "2 \"100mbit\" spardl"
        ]
    );
    let of = |job: usize| chaos::of_case(&experiment.chaos, &experiment.jobs[job][0]).len();
    assert_eq!((of(0), of(3)), (2, 1));
}

#[test]
fn what_is_not_said_follows_from_the_rest() {
    let experiment = parsed(
        "title = 't'\n[network]\nhosts = 3\nbandwidth = '1gbit'\n[workload]\ncommand = 'bench'\nparams = 10\n",
    );
    let case = &experiment.jobs[0][0];
    assert_eq!((experiment.turns, experiment.jobs.len(), case.workers()), (3, 1, 3));
    assert_eq!((case.method().as_str(), &case.0["bandwidth"]), ("spardl", &Value::from("1gbit")));
    assert_eq!(case.words(), ["--params", "10", "--seed", "1"]);
    let alone = parsed(
        "title = 't'\ntogether = false\n[workload]\ncommand = 'bench'\nparams = 10\nworkers = 2\n[matrix]\nmethod = ['ring', 'spardl/2']\n",
    );
    assert_eq!((alone.network, alone.jobs.len()), (Wanted::Loopback, 2));
}

#[test]
fn what_cannot_be_is_refused_with_its_line_and_what_was_expected() {
    for (from, to, line, words) in [
        ("turns = 2", "turns = 0", 3, "'turns' is 0"),
        ("turns = 2", "turns = 2\nlimit = '10'", 4, "'limit': '10' is no time; expected a number above 0"),
        ("turns = 2", "turns = 2\nlimit = '0s'", 4, "'0s' is no time"),
        ("turns = 2", "turns = 2\nlimit = 600", 0, "line 4"),
        ("turns = 2", "turn = 2", 0, "unknown field `turn`, expected one of"),
        ("hosts = 4", "host = 4", 0, "unknown field `host`, expected one of `hosts`"),
        ("hosts = 4", "hosts = 3", 5, "4 workers need 4 hosts, and the network has 3"),
        ("hosts = 4", "hosts = 4\nbandwidth = '1gbps'", 5, "'1gbps' is no bandwidth"),
        (
            "hosts = 4",
            "hosts = 4\nbandwidth = '1gbit'",
            17,
            "'bandwidth' stands in [network] and in [matrix]",
        ),
        ("hosts = 4", "topology = 'x'\nhosts = 4", 5, "leave the other keys"),
        ("hosts = 4", "topology = 'x'", 16, "'bandwidth' is not known in [matrix]"),
        (
            "command = \"bench\"",
            "command = \"plan\"",
            9,
            "'command' is \"plan\"; expected \"bench\", \"train\" or \"regress\"",
        ),
        ("command = \"bench\"\n", "", 8, "[workload] lacks 'command'"),
        ("params = 100_000", "", 8, "[workload] lacks 'params'"),
        ("steps = 5", "step = 5", 10, "'step' is not known in [workload]; expected one of method, density"),
        ("steps = 5", "steps = [5]", 10, "expected a text, a number"),
        ("steps = 5", "steps = nan", 10, "expected a text, a number"),
        ("workers = [4, 2]", "workers = [4, 0]", 15, "expected a whole number from 1 to 1024"),
        (
            "workers = [4, 2]",
            "workers = [4, 2]\nsockets = [1, 65]",
            16,
            "'sockets' is 65; expected a number from 1 to 64",
        ),
        ("steps = 5", "transport = 'udp'", 10, "'transport' is \"udp\"; expected tcp, quic, verbs or auto"),
        ("workers = [4, 2]", "workers = 4", 15, "expected a list"),
        ("workers = [4, 2]", "workers = [4, 4]", 15, "a list of different values"),
        ("workers = [4, 2]", "workers = []", 15, "a list of different values"),
        ("\"ring\"]", "\"all\"]", 14, "expected the name of one method"),
        ("\"100mbit\"]", "\"fast\"]", 16, "'fast' is no bandwidth"),
        ("workers = [2, 4]", "workers = 3", 18, "this [[exclude]] fits no case"),
        ("step = 3", "", 23, "either 'at = \"3s\"' or 'step = 20'"),
        ("step = 3", "step = 3\nat = '1s'", 23, "either 'at"),
        ("rank = 1", "rank = 4", 23, "numbered from 0 to 3"),
        ("rank = 1", "host = 1", 23, "need 'rank'"),
        ("for = \"1s\"", "for = \"1\"", 23, "'1' is no time"),
        ("\"stop\"", "\"kill\"", 23, "'for' goes with"),
        ("\"stop\"", "\"slow\"", 23, "needs 'share'"),
        ("\"stop\"", "\"halt\"", 0, "unknown variant `halt`, expected one of"),
        ("bandwidth = \"10mbit\"", "", 30, "needs one of bandwidth, link_latency"),
        ("bandwidth = \"10mbit\"", "bandwidth = \"10\"", 30, "'10' is no bandwidth"),
    ] {
        expect_refused(WHOLE, (from, to), (line, words));
    }
}

/// Faults that are an axis, and a number that is searched for.
const MORE: &str = r#"title = "More"
[workload]
command = "bench"
workers = 2
params = 1000
[matrix]
faults = ["none", "slow"]
selector = ["top", "threshold=?"]
method = ["topka"]
[[exclude]]
faults = "slow"
selector = "threshold=?"
[[chaos]]
step = 1
do = "slow"
rank = 1
share = 0.5
cases = { faults = "slow" }
[search]
from = 1e-3
to = 10
number = "entries_per_step"
within = 0.1
aim = { selector = "top" }
trial = { seed = 9 }
"#;

#[test]
fn faults_are_an_axis_and_a_search_is_read() {
    let experiment = parsed(MORE);
    let jobs: Vec<(usize, bool, Vec<String>)> = (experiment.jobs.iter())
        .map(|job| {
            (chaos::of_case(&experiment.chaos, &job[0]).len(), search::is_unknown(&job[0]), job[0].words())
        })
        .collect();
    let words = |selector: &str| {
        ["--params", "1000", "--seed", "1", "--selector", selector].map(str::to_owned).to_vec()
    };
    assert_eq!(jobs, [(0, false, words("top")), (0, true, words("threshold=?")), (1, false, words("top"))]);
    let search = experiment.search.unwrap();
    assert_eq!((search.from, search.to), (1e-3, 10.0));
    for (from, to, line, words) in [
        (
            "\"none\", \"slow\"",
            "\"none\", \"slow\", \"cut\"",
            7,
            "'faults' is \"cut\"; expected \"none\", or what stands in the 'cases'",
        ),
        ("\"none\", \"slow\"", "\"none\", \"slow\", 1", 7, "'faults' is 1; expected a text"),
        ("params = 1000", "params = 1000\nplain = 1", 6, "'plain' is 1; expected true or false"),
        ("\"threshold=?\"]", "\"threshold=1\"]", 10, "this [[exclude]] fits no case"),
        ("from = 1e-3", "from = 0.0", 19, "needs 'from' above 0"),
        ("from = 1e-3", "begin = 0.0", 0, "unknown field `begin`, expected one of `from`"),
        ("aim = { selector", "aim = { select", 24, "'select' is not known in [search]"),
        (
            "[search]\nfrom = 1e-3\nto = 10\nnumber = \"entries_per_step\"\nwithin = 0.1\naim = { selector = \"top\" }\ntrial = { seed = 9 }\n",
            "",
            2,
            "need each other",
        ),
        (
            "method = [\"topka\"]",
            "method = [\"topka\", \"gloo\"]",
            2,
            "open-mpi, mpich and gloo need command",
        ),
    ] {
        expect_refused(MORE, (from, to), (line, words));
    }
}

/// An experiment with PyTorch's DDP.
const DDP: &str = "title = 't'\n[network]\n[workload]\ncommand = 'train'\nworkers = 2\nsteps = 4\nlayers = 'times.json'\n[matrix]\nmethod = ['ring', 'ddp']\n";

/// A training with a communication hook, which knows few options.
const HOOK: &str = "title = 't'\n[network]\n[workload]\ncommand = 'train'\nworkers = 2\nsteps = 4\nlr = 0.1\ndata = 'mnist:digits'\nmodel = 'mlp'\n[matrix]\nmethod = ['ring', 'powersgd-2']\n";

/// A regression on a cluster of Spark's.
const MLLIB: &str = "title = 't'\n[network]\n[workload]\ncommand = 'regress'\nworkers = 2\ndata = 'x.svm'\nl2 = 0.1\n[matrix]\nby = [{ method = 'ring' }, { method = 'mllib-sgd', lr = 1, epochs = 2 }, { method = 'mllib-lbfgs', epochs = 4 }]\n";

/// A regression by one process.
const LINEAR: &str = "title = 't'\n[workload]\ncommand = 'regress'\nworkers = 1\ndata = 'x.svm'\nepochs = 5\n[matrix]\nmethod = ['ring', 'liblinear', 'vowpal-wabbit']\n";

#[test]
fn peers_that_lack_something_are_refused() {
    for (text, jobs) in [(HOOK, 2), (MLLIB, 3), (LINEAR, 3)] {
        assert_eq!(parsed(text).jobs.len(), jobs);
    }
    for (text, from, to, words) in [
        (DDP, "layers = 'times.json'\n", "", "ddp needs command"),
        (DDP, "[network]\n", "", "add a [network]"),
        (DDP, "'ddp'", "'spardl'", "'layers' is what the method ddp emulates"),
        (DDP, "'ddp'", "'mpich'", "open-mpi, mpich and gloo need command"),
        (HOOK, "lr = 0.1\n", "", "need command = \"train\""),
        (HOOK, "'mnist:digits'", "'digits'", "data = \"mnist:DIR\""),
        (HOOK, "lr = 0.1\n", "lr = 0.1\nweight_decay = 0.1\n", "know none of the other options"),
        (HOOK, "'mlp'", "'cnn'", "model = \"mlp\""),
        (HOOK, "'mlp'", "'vgg16'", "data = \"synthetic\""),
        (HOOK, "'powersgd-2'", "'torch-spardl'", "torch-spardl needs a 'density'"),
        (HOOK, "lr = 0.1\n", "lr = 0.1\ndensity = 0.1\n", "no other takes one"),
        (HOOK, "[network]\n", "", "add a [network]"),
        (MLLIB, "[network]\n", "", "add a [network]"),
        (MLLIB, "'x.svm'", "'url'", "need command = \"regress\", a LIBSVM file"),
        (MLLIB, "lr = 1, ", "", "and, the first, 'lr'"),
        (MLLIB, ", epochs = 4", "", "'epochs' and, the first"),
        (MLLIB, "l2 = 0.1", "l1 = 0.1", "none of the other options"),
        (LINEAR, "epochs = 5", "epochs = 1", "'epochs' of 2 or more"),
        (LINEAR, "workers = 1", "workers = 2", "workers = 1"),
        (LINEAR, "'x.svm'", "'webspam'", "a LIBSVM file as 'data'"),
        (LINEAR, "epochs = 5", "epochs = 5\nl2 = 0.1", "none of the other options"),
    ] {
        let line = if from == "[network]\n" || text == LINEAR { 2 } else { 3 };
        expect_refused(text, (from, to), (line, words));
    }
}

/// An experiment that measures floors across links of two rates.
const FLOORS: &str = "title = 't'\n[network]\n[workload]\ncommand = 'bench'\nparams = 10\nworkers = 2\nsteps = 1\nwarmup = 0\nfloor = true\n\
                      [matrix]\nmethod = ['ring', 'spardl']\nbandwidth = ['1gbit', '100mbit']\n";

#[test]
fn a_floor_is_of_our_methods_and_needs_the_rate_of_the_links() {
    let rates = |text: &str| -> Vec<String> {
        let given = |words: &[String]| {
            words
                .windows(2)
                .find(|pair| pair[0] == "--bandwidth")
                .map_or_else(String::new, |pair| pair[1].clone())
        };
        parsed(text).jobs.iter().map(|job| given(&job[0].words())).collect()
    };
    assert_eq!(rates(FLOORS), ["1gbit", "100mbit"]);
    assert_eq!(rates(&FLOORS.replace("floor = true", "floor = false")), ["", ""]);
    for (from, to, words) in [
        ("floor = true", "floor = 1", "'floor' is 1; expected true or false"),
        ("'spardl'", "'gloo'", "other libraries measure no 'floor'"),
        ("'bench'", "'train'", "'floor' is not known in [workload]"),
        ("bandwidth = ['1gbit', '100mbit']\n", "", "'floor' needs the rate of all links"),
    ] {
        expect_refused(FLOORS, (from, to), (9, words));
    }
    let without_rate = FLOORS.replace("bandwidth = ['1gbit', '100mbit']\n", "");
    for (to, line) in [("", 8), ("[network]\ntopology = 'x'\n", 10)] {
        expect_refused(&without_rate, ("[network]\n", to), (line, "'floor' needs the rate"));
    }
    let tables = FLOORS
        .replace("floor = true\n", "")
        .replace("method = ['ring', 'spardl']", "by = [{ method = 'gloo' }, { floor = true }]");
    assert_eq!(rates(&tables), ["", "", "1gbit", "100mbit"]);
    expect_refused(
        &tables,
        ("{ floor = true }", "{ method = 'mpich', floor = true }"),
        (3, "other libraries"),
    );
}

#[test]
fn a_peer_is_measured_in_a_job_of_its_own() {
    let jobs = parsed(
        "title = 't'\n[network]\n[workload]\ncommand = 'bench'\nparams = 10\nworkers = 2\nsteps = 1\nwarmup = 0\n[matrix]\nmethod = ['ring', 'gloo', 'spardl', 'mpich']\n",
    )
    .jobs;
    let methods: Vec<Vec<String>> = jobs.iter().map(|job| job.iter().map(Case::method).collect()).collect();
    assert_eq!(methods, [vec!["ring", "spardl"], vec!["gloo"], vec!["mpich"]]);
}

/// What some tables leave out is as it is in a file without tables: refused, or the default.
#[test]
fn what_a_table_leaves_out_is_needed_or_has_its_default() {
    const TABLES: &str = "title = 't'\n[workload]\ncommand = 'train'\n[matrix]\nwhat = [{ workers = 2, method = 'ring' }, { workers = 3 }]\n";
    let methods: Vec<String> = parsed(TABLES).jobs.iter().map(|job| job[0].method()).collect();
    assert_eq!(methods, ["ring", "spardl"]);
    expect_refused(TABLES, ("workers = 2, ", ""), (2, "workers"));
}

/// A table sets options together, and none of them in the other cases.
#[test]
fn an_axis_of_tables_sets_several_options_at_once() {
    const TABLES: &str = "title = 't'\n[workload]\ncommand = 'train'\nworkers = 2\n[matrix]\nseed = [1, 2]\n\
                          what = [{ method = 'ring' }, { method = ['spardl', 'topka'], density = [0.1, 0.2] }]\n";
    let cases: Vec<String> = parsed(TABLES).jobs.iter().map(|job| job[0].words().join(" ")).collect();
    assert_eq!(cases.len(), 2 * (1 + 4));
    assert_eq!(cases[..3], ["--seed 1", "--density 0.1 --seed 1", "--density 0.1 --seed 1"]);
    for (from, to, words) in [
        ("what = ", "lr = ", "values of this option"),
        ("density =", "densty =", "'densty' is not known in [matrix]"),
        ("{ method = 'ring' }", "'ring'", "tables only"),
        ("density = [0.1, 0.2]", "seed = 3", "'seed' stands in"),
        ("density = [0.1, 0.2]", "workers = 3", "'workers' stands in"),
        ("density = [0.1, 0.2]", "workers = 'x'", "'workers'"),
    ] {
        expect_refused(TABLES, (from, to), (7, words));
    }
}

#[test]
fn another_program_gets_the_values_of_the_case() {
    const TEXT: &str = r#"title = "Ours and theirs"
[workload]
program = "env THREADS={threads} 'my trainer' --fast {workers}"
workers = 2
transport = "quic"
[matrix]
threads = [1, 2]
rate = [0.5]
deep = [true]
"#;
    let experiment = parsed(TEXT);
    let words = experiment.jobs[1][0].program().unwrap();
    assert_eq!(words, ["env", "THREADS=2", "my trainer", "--fast", "2", "--deep", "--rate", "0.5"]);
    let methods: Vec<String> = experiment.jobs.iter().map(|job| job[0].method()).collect();
    assert_eq!(methods, [experiment.jobs[0][0].0["program"].as_str().unwrap(); 2]);
    let pytorch = TEXT.replace("rate", "method").replace("0.5", "'torch'");
    assert!(!parsed(&pytorch).jobs[0][0].is_of_peer());

    expect_refused(TEXT, ("workers = 2", "command = 'bench'"), (3, "keep one of them"));
    expect_refused(TEXT, ("'my trainer'", "'my trainer"), (3, "quoted as in a shell"));
    expect_refused(TEXT, ("{threads}", "{cores}"), (3, "has {cores}, and not every case has a 'cores'"));
    for (key, place) in
        [("loss", "in [network], or"), ("command", "in [workload]"), ("topology", "in [network]")]
    {
        let words = format!("'{key}' is no option of a program; expected it {place}");
        expect_refused(TEXT, ("rate", key), (8, &words));
    }
    // What is no placeholder stays, and a value is not looked into.
    let shell =
        TEXT.replace("--fast {workers}", r"{ print } ${THREADS} {rate}{deep}").replace("0.5", "'{deep}?$'");
    let words = parsed(&shell.replace("threads =", "layers = [3]\nthreads =")).jobs[0][0].program().unwrap();
    assert_eq!(words[3..], ["{", "print", "}", "${THREADS}", "{deep}?$true", "--layers", "3"]);
    expect_refused(TEXT, ("threads = [1, 2]", "threads = [1, 1]"), (7, "a list of different values"));
}

#[test]
fn a_seed_that_is_said_is_kept() {
    let text = "title = 't'\n[workload]\ncommand = 'bench'\nparams = 10\nworkers = 2\n";
    for (more, seeds) in [("", &[1][..]), ("seed = 7\n", &[7]), ("[matrix]\nseed = [3, 4]\n", &[3, 4])] {
        let jobs = parsed(&format!("{text}{more}")).jobs;
        let found: Vec<u64> = jobs.iter().map(|job| job[0].0["seed"].as_u64().unwrap()).collect();
        assert_eq!(found, seeds);
    }
}

#[test]
fn without_a_network_nothing_can_be_done_to_it() {
    let text = "title = 't'\n[workload]\ncommand = 'bench'\nparams = 10\nworkers = 2\n";
    assert_eq!(parsed(text).jobs.len(), 1);
    for more in ["[[chaos]]\nat = '1s'\ndo = 'cut'\nhost = 1\n", "[matrix]\nbandwidth = ['1gbit']\n"] {
        let (line, _) = refused(&format!("{text}{more}"));
        assert!(line > 5, "{more}");
    }
}

#[test]
fn the_file_in_the_book_is_one_and_so_is_its_chaos() {
    let page = include_str!("../../../../docs/src/commands/testbed-run.md");
    let blocks: Vec<&str> =
        page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let [whole, program, chaos, faults, search] = blocks[..] else { panic!("{blocks:?}") };
    assert_eq!(parsed(program).jobs.len(), 4);
    let with_faults = whole.replace("[matrix]\n", faults.split("[[chaos]]").next().unwrap());
    let with_faults = with_faults + &faults[faults.find("[[chaos]]").unwrap()..];
    assert_eq!(parsed(&with_faults).jobs.len(), 2 * parsed(whole).jobs.len());
    let searched = whole.replace("density = [", "selector = ['top', 'threshold=?']\ndensity = [");
    assert!(parsed(&format!("{searched}{search}")).search.is_some());
    let experiment = parsed(&format!("{whole}{chaos}"));
    let cases: usize = experiment.jobs.iter().map(Vec::len).sum();
    assert_eq!((cases, experiment.turns, experiment.chaos.len()), (2 * 2 * 3 * 2 - 4, 3, 2));
    assert_eq!(experiment.network, Wanted::Uniform(6));
    for option in ["clip_local", "seed"].map(|option| format!("\n{option} = 1\n")) {
        let text = whole.replace("\nsteps = 20\n", &option);
        let known = checked("test", &text, toml::from_str(&text).unwrap()).is_ok();
        assert_eq!(known, option.contains("seed"));
    }
}

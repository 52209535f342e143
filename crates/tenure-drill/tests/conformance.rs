//! Every case of the suite on every engine; the model has no queries. Each is a test of its own,
//! and there is no way to leave one out.

use libtest_mimic::{Arguments, Trial};
use tenure_drill::conformance::cases;
use tenure_drill::engines::Engine;

fn main() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_owned();
    let trials = Engine::ALL.into_iter().flat_map(|engine| {
        let path = path.clone();
        cases().into_iter().filter(move |case| case.is_for(engine)).map(move |case| {
            let path = path.clone();
            let name =
                format!("{}::{}::{}", engine.name().replace(' ', "_"), case.chapter, case.name);
            Trial::test(name, move || {
                case.run(engine, &path);
                Ok(())
            })
            .with_kind(case.tag)
        })
    });
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials.collect());
    drop(directory);
    conclusion.exit();
}

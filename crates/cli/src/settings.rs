//! From arguments to settings that are known to be possible: everything that can be checked without
//! IO is checked here (Z-01).

use walferry::destinations::AnyDestination;
use walferry_core::config::{Limits, Until};
use walferry_pg_source::SourceConfig;
use walferry_store::StoreUrl;

use crate::args::{PipelineArgs, PlaceArgs, Setting};
use crate::error::CliError;
use crate::hints::Surroundings;

/// Longest name of a pipeline: it becomes the name of a directory.
const ID_CHARS_MAX: usize = 64;

/// What `run` shall do.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: SourceConfig,
    pub(crate) publication: String,
    pub(crate) destination: AnyDestination,
    pub(crate) destination_url: String,
    pub(crate) state: StoreUrl,
    pub(crate) until: Option<Until>,
    pub(crate) limits: Limits,
}

impl Plan {
    pub(crate) fn new(args: &PipelineArgs, until: Option<Until>) -> Result<Self, CliError> {
        let plan = Self {
            limits: limits(&args.settings)?,
            state: state_url(&args.place, Some(&args.publication))?,
            destination: destination(&args.destination)?.take_over(args.take_over),
            destination_url: args.destination.clone(),
            source: source(&args.source)?,
            publication: args.publication.clone(),
            until,
        };
        plan.refuse_mixed_output()?;
        Ok(plan)
    }

    pub(crate) fn surroundings(&self) -> Surroundings {
        Surroundings {
            source: self.source.describe(),
            destination: without_password(&self.destination_url),
            state: self.state.to_string(),
        }
    }

    /// The state has files of its own; a destination among them would get in their way.
    fn refuse_mixed_output(&self) -> Result<(), CliError> {
        let StoreUrl::File(state) = &self.state;
        let path = self.destination_url.split_once(':').map_or("", |(_, path)| path);
        let inside = match (std::path::absolute(path), std::path::absolute(state)) {
            (Ok(path), Ok(state)) => path.starts_with(state),
            (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
        };
        if !inside {
            return Ok(());
        }
        let why = format!("{} lies inside the state {}", self.destination_url, self.state);
        Err(CliError::usage("--destination was refused", why)
            .hint("the state directory is for walferry alone: name another path"))
    }
}

/// The source, with what the environment of libpq adds.
pub(crate) fn source(text: &str) -> Result<SourceConfig, CliError> {
    SourceConfig::parse(text, &|name| std::env::var(name).ok()).map_err(|fault| {
        CliError::usage("--source was refused", fault)
            .hint("for example --source postgres://user@host:5432/database")
    })
}

/// Where the state lies: as given, or by the name of the pipeline.
pub(crate) fn state_url(
    place: &PlaceArgs,
    publication: Option<&str>,
) -> Result<StoreUrl, CliError> {
    if let Some(id) = &place.id {
        check_id(id).map_err(|why| CliError::usage("--id was refused", why))?;
    }
    if let Some(text) = &place.state {
        return StoreUrl::parse(text).map_err(|error| CliError::of_state_url(&error));
    }
    let Some(id) = place.id.as_deref().or(publication) else {
        return Err(CliError::usage(
            "which pipeline is not known",
            "no name and no state was given",
        )
        .hint("name it with --id NAME, --publication NAME or --state file:DIR"));
    };
    check_id(id).map_err(|why| {
        CliError::usage("the publication cannot name the state", why)
            .hint("name the pipeline with --id NAME, or its state with --state file:DIR")
    })?;
    Ok(StoreUrl::File(format!("./walferry-{id}").into()))
}

fn check_id(id: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if id.is_empty() || id.len() > ID_CHARS_MAX || !id.chars().all(allowed) {
        return Err(format!(
            "{id:?} is no name of a pipeline, expected 1..{ID_CHARS_MAX} characters of A-Z a-z 0-9 _ - ."
        ));
    }
    Ok(())
}

fn limits(settings: &[Setting]) -> Result<Limits, CliError> {
    let mut limits = Limits::default();
    for Setting { key, value } in settings {
        limits.set(key, value).map_err(|error| CliError::of_setting(&error))?;
    }
    limits.validate().map_err(|error| CliError::of_setting(&error))?;
    Ok(limits)
}

fn destination(text: &str) -> Result<AnyDestination, CliError> {
    AnyDestination::parse(text).map_err(|error| {
        CliError::usage("--destination was refused", error)
            .hint("for example --destination sqlite:copy.db")
    })
}

/// A URL for people: what stands between `//` and the last `@` of its authority is left out.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority = rest.find('/').unwrap_or(rest.len());
    match rest[..authority].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(id: Option<&str>, state: Option<&str>) -> PlaceArgs {
        PlaceArgs { id: id.map(str::to_owned), state: state.map(str::to_owned) }
    }

    #[test]
    fn the_state_is_named_by_state_then_id_then_publication() {
        let of = |id, state, publication| {
            state_url(&place(id, state), publication).map(|url| url.to_string()).ok()
        };
        assert_eq!(of(Some("a"), Some("file:/s"), Some("p")).as_deref(), Some("file:/s"));
        assert_eq!(of(Some("a"), None, Some("p")).as_deref(), Some("file:./walferry-a"));
        assert_eq!(of(None, None, Some("p")).as_deref(), Some("file:./walferry-p"));
        assert_eq!(of(None, None, None), None);
        assert_eq!(
            of(None, Some("file:/s"), Some("no name / for a path")).as_deref(),
            Some("file:/s")
        );
        assert_eq!(of(None, None, Some("no name / for a path")), None);
        for id in ["", "../x", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert_eq!(of(Some(id), Some("file:/s"), Some("p")), None, "{id}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        for (url, shown) in [
            ("postgres://me:s3cret@host/db", "postgres://host/db"),
            ("postgres://me:p@ss@host/db", "postgres://host/db"),
            ("sqlite:a@b.db", "sqlite:a@b.db"),
            ("postgres://host/a@b", "postgres://host/a@b"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}

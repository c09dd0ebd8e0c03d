//! How some values are described in the API's document, where their Rust types do not say all that holds. What they are is
//! in the modules of their types.

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaType, Type},
    },
};

/// Month and day, the 29th of February in every year.
const DATE: &str = "([0-9]{4})-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-9])|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)";

/// A [`crate::Timestamp`]. The format `date-time` knows no time without a zone, which is UTC here.
#[derive(Debug)]
pub struct Time;

impl PartialSchema for Time {
    fn schema() -> RefOr<Schema> {
        let pattern = format!(
            r"^{DATE}T([01][0-9]|2[0-3])(:[0-5][0-9]){{2}}(\.[0-9]{{1,6}})?(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])?$"
        );
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("ISO 8601; without a zone it is UTC."))
            .pattern(Some(pattern))
            .into()
    }
}

impl ToSchema for Time {}

/// A [`crate::app::AppParameter`] where an App is made or changed: either a Job must give it, or it has a default.
#[derive(Debug)]
pub struct AppParameterCreate;

impl PartialSchema for AppParameterCreate {
    fn schema() -> RefOr<Schema> {
        let flag = |value: bool| ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([value]));
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let either = |required: bool, default: ObjectBuilder| {
            ObjectBuilder::new()
                .property("required", flag(required).description(Some("Whether a Job must give it.")))
                .required("required")
                .property("default", default.description(Some("What it is when a Job does not give it.")))
                .property("help", text().description(Some("What it is for.")))
                .property(
                    "choices",
                    ArrayBuilder::new().items(text()).description(Some("The values it may have; empty for any.")),
                )
        };
        let none = text().schema_type(SchemaType::from_iter([Type::String, Type::Null])).max_length(Some(0));
        OneOfBuilder::new()
            .description(Some("A parameter of an App."))
            .item(either(true, none))
            .item(either(false, text().min_length(Some(1))).required("default"))
            .into()
    }
}

impl ToSchema for AppParameterCreate {}

//! Checks that JSON can express every number in a value.
//!
//! `serde_json` writes `null` for NaN and infinity, so the value would not come back as it was. So
//! the value is serialized once more, with a serializer that writes nothing.

use std::fmt::Display;

use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// Refuses a value with a number that is NaN or infinite.
pub(super) fn check(value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
    value.serialize(Finite)
}

#[derive(Clone, Copy)]
struct Finite;

type Checked<T = ()> = serde_json::Result<T>;

macro_rules! always_finite {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, _: $type) -> Checked {
            Ok(())
        })*
    };
}

impl Serializer for Finite {
    type Ok = ();
    type Error = serde_json::Error;
    type SerializeSeq = Finite;
    type SerializeTuple = Finite;
    type SerializeTupleStruct = Finite;
    type SerializeTupleVariant = Finite;
    type SerializeMap = Finite;
    type SerializeStruct = Finite;
    type SerializeStructVariant = Finite;

    always_finite! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32,
        serialize_i64: i64, serialize_i128: i128, serialize_u8: u8, serialize_u16: u16,
        serialize_u32: u32, serialize_u64: u64, serialize_u128: u128, serialize_char: char,
        serialize_str: &str, serialize_bytes: &[u8], serialize_unit_struct: &'static str
    }

    fn serialize_f32(self, number: f32) -> Checked {
        self.serialize_f64(number.into())
    }

    fn serialize_f64(self, number: f64) -> Checked {
        if number.is_finite() {
            return Ok(());
        }
        let why =
            format!("a number is {number}, which JSON cannot say; use null or a text instead");
        Err(serde_json::Error::custom(why))
    }

    fn serialize_none(self) -> Checked {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Checked {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Checked {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Checked {
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Checked {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Checked {
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Checked<Finite> {
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Checked<Finite> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Checked<Finite> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Checked<Finite> {
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Checked<Finite> {
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Checked<Finite> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Checked<Finite> {
        Ok(self)
    }

    fn collect_str<T: Display + ?Sized>(self, _: &T) -> Checked {
        Ok(())
    }
}

/// For containers: each value inside is checked.
macro_rules! checks_each {
    ($($holder:ident { $($method:ident($($name:ty)?)),+ })*) => {
        $(impl $holder for Finite {
            type Ok = ();
            type Error = serde_json::Error;

            $(fn $method<T: Serialize + ?Sized>(&mut self, $(_: $name,)? value: &T) -> Checked {
                value.serialize(*self)
            })+

            fn end(self) -> Checked {
                Ok(())
            }
        })*
    };
}
checks_each! {
    SerializeSeq { serialize_element() }
    SerializeTuple { serialize_element() }
    SerializeTupleStruct { serialize_field() }
    SerializeTupleVariant { serialize_field() }
    SerializeMap { serialize_key(), serialize_value() }
    SerializeStruct { serialize_field(&'static str) }
    SerializeStructVariant { serialize_field(&'static str) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;

    use super::*;

    #[derive(Serialize)]
    struct Record<T> {
        name: &'static str,
        value: T,
    }

    #[derive(Serialize)]
    struct Wrapped<T>(T);

    #[derive(Serialize)]
    struct Pair<T>((), T);

    #[derive(Serialize)]
    enum Variant<T> {
        Unit,
        Newtype(T),
        Tuple((), T),
        Struct { value: T },
    }

    /// The same number inside every kind of container.
    fn holders(number: f64) -> Vec<(&'static str, serde_json::Result<()>)> {
        vec![
            ("f64", check(&number)),
            ("f32", check(&(number as f32))),
            ("option", check(&Some(number))),
            ("seq", check(&vec![0.0, number])),
            ("tuple", check(&("first", number))),
            ("map", check(&BTreeMap::from([("key", number)]))),
            ("struct", check(&Record { name: "name", value: number })),
            ("newtype", check(&Wrapped(number))),
            ("tuple struct", check(&Pair((), number))),
            ("newtype variant", check(&Variant::Newtype(number))),
            ("tuple variant", check(&Variant::Tuple((), number))),
            ("struct variant", check(&Variant::Struct { value: number })),
            ("deep", check(&[Some(Record { name: "name", value: Wrapped(vec![number]) })])),
        ]
    }

    #[test]
    fn a_number_that_json_cannot_express_is_found_wherever_it_is() {
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for (holder, checked) in holders(number) {
                let error = checked.unwrap_err().to_string();
                assert!(error.starts_with(&format!("a number is {number}, ")), "{holder}: {error}");
            }
        }
    }

    #[test]
    fn everything_else_passes() {
        for (holder, checked) in holders(-0.5) {
            assert!(checked.is_ok(), "{holder}: {checked:?}");
        }
        let scalars = (true, 1_i8, 'c', "text", u128::MAX, None::<f64>, (), Variant::<f64>::Unit);
        check(&scalars).unwrap();
        check(&serde_json::json!({"null": null, "number": 1e300})).unwrap();
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code of an element, and the constants that prove what its bytes rely on.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned as _;

use crate::describe::Description;

/// `impl Element` for the struct.
pub(crate) fn element(description: &Description) -> TokenStream {
    let Description {
        ident,
        type_id,
        overhear,
        fields,
    } = description;
    let mut proofs = TokenStream::new();
    let mut calls = TokenStream::new();
    // The end of the fields so far, as an expression.
    let mut end = quote!(0_usize);
    for field in fields {
        let (member, ty, name, unit) = (&field.ident, &field.ty, &field.name, &field.unit);
        let message = format!(
            "there is padding before the field `{member}`, whose bytes would leak to monitors: \
             order the fields from large to small, or name the padding"
        );
        // Named by the field's type, so that a type which is no field is reported there.
        let kind = quote_spanned!(ty.span()=> <#ty as #overhear::ElementField>::KIND);
        let span = member.span();
        let empty = format!("the field `{member}` has no bytes; remove it");
        proofs.extend(quote_spanned! {span=>
            ::core::assert!(::core::mem::size_of::<#ty>() > 0, #empty);
            ::core::assert!(::core::mem::offset_of!(#ident, #member) == #end, #message);
        });
        end = quote!(#end + ::core::mem::size_of::<#ty>());
        calls.extend(quote!(.field(#name, #kind, #unit)));
    }
    let padded = format!(
        "there is padding behind the last field of `{ident}`, whose bytes would leak to monitors: \
         name it, for example `reserved: u32`"
    );
    let large = format!(
        "`{ident}` has more than 4088 bytes and does not fit into an element: write it in parts"
    );
    let span = ident.span();
    proofs.extend(quote_spanned! {span=>
        ::core::assert!(::core::mem::size_of::<#ident>() == #end, #padded);
        ::core::assert!(
            ::core::mem::size_of::<#ident>() <= #overhear::MAX_PAYLOAD_BYTES as usize,
            #large
        );
    });
    quote! {
        const _: () = { #proofs };

        #[automatically_derived]
        impl #overhear::Element for #ident {
            fn schema() -> #overhear::TypeSchema {
                #overhear::TypeSchema::builder(#type_id)
                    #calls
                    .build()
                    .expect("the derive has checked names, units and the places of the fields")
            }

            #[inline(always)]
            fn as_bytes(&self) -> &[u8] {
                // SAFETY: every field is an ElementField (schema() names KIND of each), and the
                // constants above prove that the fields cover every byte of the struct.
                unsafe { #overhear::derive_support::bytes_of(self) }
            }
        }
    }
}

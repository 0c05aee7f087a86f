--  SPDX-License-Identifier: MIT OR Apache-2.0
--
--  The root of the Ada bindings to POSIX [POSIX.5], as far as trace streams need it: strings of
--  characters, and errors.
--
--  A failed call of POSIX raises POSIX_Error. Get_Error_Code then has the error number, and the
--  message of the exception the reason.

with Interfaces.C;

package POSIX is

   subtype POSIX_Character is Standard.Character;
   type POSIX_String is array (Positive range <>) of aliased POSIX_Character;

   function To_POSIX_String (Text : String) return POSIX_String;
   function To_String (Text : POSIX_String) return String;

   POSIX_Error : exception;

   type Error_Code is new Interfaces.C.int;

   No_Error                  : constant Error_Code := 0;
   Operation_Not_Permitted   : constant Error_Code := 1;
   Invalid_Argument          : constant Error_Code := 22;

   --  The error number of the calling task's last POSIX_Error.
   function Get_Error_Code return Error_Code;
   procedure Set_Error_Code (Error : Error_Code);
   function Image (Error : Error_Code) return String;

   --  Raises POSIX_Error with this number and this message.
   procedure Raise_POSIX_Error (Error : Error_Code; Message : String);
   pragma No_Return (Raise_POSIX_Error);

end POSIX;

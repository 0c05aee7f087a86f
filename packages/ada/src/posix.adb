--  SPDX-License-Identifier: MIT OR Apache-2.0

with Ada.Task_Attributes;
with Interfaces.C.Strings;

package body POSIX is

   package Last_Error is new Ada.Task_Attributes (Error_Code, No_Error);

   function To_POSIX_String (Text : String) return POSIX_String is
      Result : POSIX_String (1 .. Text'Length);
   begin
      for I in Result'Range loop
         Result (I) := Text (Text'First + I - 1);
      end loop;
      return Result;
   end To_POSIX_String;

   function To_String (Text : POSIX_String) return String is
      Result : String (1 .. Text'Length);
   begin
      for I in Result'Range loop
         Result (I) := Text (Text'First + I - 1);
      end loop;
      return Result;
   end To_String;

   function Get_Error_Code return Error_Code is (Last_Error.Value);

   procedure Set_Error_Code (Error : Error_Code) is
   begin
      Last_Error.Set_Value (Error);
   end Set_Error_Code;

   function Image (Error : Error_Code) return String is
      function Strerror (Number : Interfaces.C.int) return Interfaces.C.Strings.chars_ptr;
      pragma Import (C, Strerror, "strerror");
   begin
      return Interfaces.C.Strings.Value (Strerror (Interfaces.C.int (Error)));
   end Image;

   procedure Raise_POSIX_Error (Error : Error_Code; Message : String) is
   begin
      Set_Error_Code (Error);
      raise POSIX_Error with Message;
   end Raise_POSIX_Error;

end POSIX;

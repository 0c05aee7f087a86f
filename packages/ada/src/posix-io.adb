--  SPDX-License-Identifier: MIT OR Apache-2.0

with GNAT.OS_Lib;

package body POSIX.IO is

   use type Interfaces.C.int;

   --  The values of Linux on all architectures that this library supports.
   O_CREAT   : constant Interfaces.C.int := 8#100#;
   O_TRUNC   : constant Interfaces.C.int := 8#1000#;
   O_CLOEXEC : constant Interfaces.C.int := 8#2000000#;

   function C_Open
     (Name  : Interfaces.C.char_array;
      Flags : Interfaces.C.int;
      Mode  : Interfaces.C.unsigned) return Interfaces.C.int;
   pragma Import (C_Variadic_2, C_Open, "open");

   function Open_With
     (Name  : POSIX_String;
      Mode  : File_Mode;
      Flags : Interfaces.C.int) return File_Descriptor
   is
      Path : constant String := To_String (Name);
      File : constant Interfaces.C.int :=
        C_Open
          (Interfaces.C.To_C (Path), Interfaces.C.int (File_Mode'Pos (Mode)) + Flags, 8#600#);
   begin
      if File < 0 then
         declare
            Error : constant Error_Code := Error_Code (GNAT.OS_Lib.Errno);
         begin
            Raise_POSIX_Error (Error, Path & ": " & Image (Error));
         end;
      end if;
      return File_Descriptor (File);
   end Open_With;

   function Open (Name : POSIX_String; Mode : File_Mode) return File_Descriptor is
     (Open_With (Name, Mode, O_CLOEXEC));

   function Open_Or_Create (Name : POSIX_String; Mode : File_Mode) return File_Descriptor is
     (Open_With (Name, Mode, O_CREAT + O_TRUNC + O_CLOEXEC));

   procedure Close (File : File_Descriptor) is
      function C_Close (File : Interfaces.C.int) return Interfaces.C.int;
      pragma Import (C, C_Close, "close");
   begin
      if C_Close (Interfaces.C.int (File)) < 0 then
         Raise_POSIX_Error (Error_Code (GNAT.OS_Lib.Errno), "the descriptor cannot be closed");
      end if;
   end Close;

end POSIX.IO;

--  SPDX-License-Identifier: MIT OR Apache-2.0
--
--  Files, as far as logs of trace streams need them.

with Interfaces.C;

package POSIX.IO is

   type File_Descriptor is new Interfaces.C.int;

   type File_Mode is (Read_Only, Write_Only, Read_Write);

   --  Opens a file that exists.
   function Open (Name : POSIX_String; Mode : File_Mode) return File_Descriptor;

   --  Opens a file for a new log: it is created, with access for its owner alone, or emptied.
   function Open_Or_Create (Name : POSIX_String; Mode : File_Mode) return File_Descriptor;

   procedure Close (File : File_Descriptor);

end POSIX.IO;

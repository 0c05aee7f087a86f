--  SPDX-License-Identifier: MIT OR Apache-2.0
--
--  Process ids, for the creation of trace streams.

with Interfaces.C;

package POSIX.Process_Identification is

   type Process_ID is private;

   --  In POSIX.Trace: the calling process.
   Null_Process_ID : constant Process_ID;

   function Get_Process_ID return Process_ID;
   function To_Process_ID (Number : Interfaces.C.int) return Process_ID;
   function To_Number (Process : Process_ID) return Interfaces.C.int;
   function Image (Process : Process_ID) return String;

private

   type Process_ID is new Interfaces.C.int;
   Null_Process_ID : constant Process_ID := 0;

end POSIX.Process_Identification;

--  SPDX-License-Identifier: MIT OR Apache-2.0

package body POSIX.Process_Identification is

   function Get_Process_ID return Process_ID is
      function Getpid return Interfaces.C.int;
      pragma Import (C, Getpid, "getpid");
   begin
      return Process_ID (Getpid);
   end Get_Process_ID;

   function To_Process_ID (Number : Interfaces.C.int) return Process_ID is (Process_ID (Number));

   function To_Number (Process : Process_ID) return Interfaces.C.int is
     (Interfaces.C.int (Process));

   function Image (Process : Process_ID) return String is
      Text : constant String := Process'Image;
   begin
      return (if Text (Text'First) = ' ' then Text (Text'First + 1 .. Text'Last) else Text);
   end Image;

end POSIX.Process_Identification;
